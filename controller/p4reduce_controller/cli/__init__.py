# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller`: one module for each group of commands.

Imports all other folders; nothing but `python -m p4reduce_controller` imports it.
"""
