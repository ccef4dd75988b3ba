# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-lab compare`: the same tensors over the same links, by p4reduce, Gloo and Open MPI.

Imports `system`, `choice`, `networks`, `processes` and `measured`.
"""
