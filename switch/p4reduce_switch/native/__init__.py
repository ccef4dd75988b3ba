# SPDX-License-Identifier: Apache-2.0
"""A compiled program's state as Python sees it: what `state` has, in memory that C works on.

Imports `state`, `codegen_c` and `pipeline`, and p4reduce_native for libraries and their memory.
"""
