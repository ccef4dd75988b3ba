# SPDX-License-Identifier: Apache-2.0
"""The second generator: from a program to C, which becomes machine code when it is loaded.

It takes the same typed program as the one that makes Python, and what it makes gives the same
frames, byte for byte; tests/native/test_c_*.py compares the two.
"""

from .context import Event
from .errors import NotNativeError
from .generate import Generated, generate

__all__ = ["Event", "Generated", "NotNativeError", "generate"]
