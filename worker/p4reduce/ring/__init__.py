# SPDX-License-Identifier: Apache-2.0
"""All-reduce without a switch: a ring of TCP connections among the ranks.

Each rank connects to the next one. What travels is what would have gone to the switch, the same
exponents and the same lanes, so the sums are the switch's, bit for bit. Imports `protocol`,
`reference`, `tensors` and `wire`.
"""
