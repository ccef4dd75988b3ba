# SPDX-License-Identifier: Apache-2.0
"""What do sparse tensors save: time, bytes at the switch's ports, memory?"""
