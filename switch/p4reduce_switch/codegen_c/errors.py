# SPDX-License-Identifier: Apache-2.0
"""What the generator cannot do. Apart, since each of its modules raises it."""

from __future__ import annotations

__all__ = ["NotNativeError"]


class NotNativeError(Exception):
    """The program has a construct that is not made machine code; it says which, and where."""
