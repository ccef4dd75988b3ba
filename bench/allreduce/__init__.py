# SPDX-License-Identifier: Apache-2.0
"""How long does an all-reduce take, and the other collectives, by window, lanes and link?"""
