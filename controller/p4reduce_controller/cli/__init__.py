# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller`: one module for each group of commands.

Imports all other folders. Only the command loads it (p4reduce_common/commands.py).
"""
