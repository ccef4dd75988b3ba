# SPDX-License-Identifier: Apache-2.0
"""What the generator cannot do."""

from __future__ import annotations

__all__ = ["NotNativeError"]


class NotNativeError(Exception):
    """The program has a construct that is not made machine code; it says which, and where."""
