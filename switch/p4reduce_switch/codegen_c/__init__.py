# SPDX-License-Identifier: Apache-2.0
"""The second generator: from a program to C, which becomes machine code when it is loaded.

It takes the same typed program as the one that makes Python, and what it makes gives the same
frames, byte for byte; tests/native/test_c_*.py compares the two. Imports `program` and constants of
`state`. More than a dozen modules: what Python has in its language (integers of any width, headers
in and out, dicts) has a module each here.
"""

from p4reduce_switch.codegen_c.context import Event
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.generate import Generated, generate

__all__ = ["Event", "Generated", "NotNativeError", "generate"]
