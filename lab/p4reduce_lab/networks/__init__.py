# SPDX-License-Identifier: Apache-2.0
"""The network between switch and workers: Mininet hosts, or veth pairs.

Imports `processes` only.
"""
