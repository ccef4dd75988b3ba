# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-lab compare`: the same tensors over the same links, by p4reduce, Gloo and Open MPI.

Of the rest of the lab this imports `system`, `choice`, `networks`, `processes`, `measured`,
`errors`, `plots` and `progress`.
"""
