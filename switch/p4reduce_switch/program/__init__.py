# SPDX-License-Identifier: Apache-2.0
"""The typed program: what the BMv2 JSON says, checked; and what loader and generators share.

Imports nothing of the other folders, except the names of match kinds from `state`.
"""
