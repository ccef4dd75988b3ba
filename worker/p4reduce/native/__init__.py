# SPDX-License-Identifier: Apache-2.0
"""The worker's part of the protocol in machine code, with the same results bit for bit.

The C is in native/p4reduce_native/csrc/worker; what is here calls it. The modules of `p4reduce` in
which the same is said with numpy are the reference, and take over where there is no machine code
(`P4REDUCE_NATIVE=0`, or neither compiler nor compiled library).
"""
