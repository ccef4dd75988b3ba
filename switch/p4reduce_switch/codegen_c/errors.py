# SPDX-License-Identifier: Apache-2.0
"""The error of the generator. It has a module of its own because every module raises it."""

from __future__ import annotations


class NotNativeError(Exception):
    """The program has a construct that cannot become machine code. The message names it and its
    place."""
