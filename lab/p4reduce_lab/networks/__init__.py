# SPDX-License-Identifier: Apache-2.0
"""The network between switch and workers: Mininet hosts, veth pairs, or linked namespaces.

Imports `processes` only.
"""
