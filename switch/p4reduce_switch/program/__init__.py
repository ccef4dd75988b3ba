# SPDX-License-Identifier: Apache-2.0
"""The typed program: the contents of the BMv2 JSON, checked, and what loader and generators share.

Imports none of the other folders, except the names of match kinds from `state`.
"""
