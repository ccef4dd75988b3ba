# SPDX-License-Identifier: Apache-2.0
"""The C generator: turns a program into C, which is compiled when the program is loaded.

It takes the same typed program as the interpreter. Both give the same frames, byte for byte;
tests/native/test_c_*.py compares them. Imports `program` and constants of `state`. There are more
than a dozen modules, because C lacks what Python has: integers of any width, packing of headers,
and dicts.

`generate.generate` is the way in. It is not imported here: a switch that finds the C in its cache
needs no generator.
"""

from p4reduce_switch.codegen_c.errors import NotNativeError
from p4reduce_switch.codegen_c.generated import GeneratedC, PythonEvent

__all__ = ["GeneratedC", "NotNativeError", "PythonEvent"]
