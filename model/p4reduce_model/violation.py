# SPDX-License-Identifier: Apache-2.0
"""What can be wrong. Apart, since all that explores or checks raises it."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - what the check looks for, not what went wrong with it
    """An invariant does not hold. The text says which one, and how."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
