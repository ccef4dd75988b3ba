# SPDX-License-Identifier: Apache-2.0
"""The C generator: turns a program into C, which is compiled when the program is loaded.

It takes the same typed program as the Python generator. Both give the same frames, byte for byte;
tests/native/test_c_*.py compares them. Imports `program` and constants of `state`. There are more
than a dozen modules, because C lacks what Python has: integers of any width, packing of headers,
and dicts.
"""

from p4reduce_switch.codegen_c.context import PythonEvent
from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.generate import GeneratedC, generate

__all__ = ["GeneratedC", "NotNativeError", "PythonEvent", "generate"]
