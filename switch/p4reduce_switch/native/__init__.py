# SPDX-License-Identifier: Apache-2.0
"""The state of a compiled program as Python sees it: the objects of `state`, in memory that C uses.

Imports `program`, `state`, `codegen_c` and `pipeline`, and p4reduce_native for libraries and their
memory.
"""
