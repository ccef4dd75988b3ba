# SPDX-License-Identifier: Apache-2.0
"""How long does Ray Train take to its first step, with p4reduce and with Gloo?"""
