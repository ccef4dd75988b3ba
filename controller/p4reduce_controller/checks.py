# SPDX-License-Identifier: Apache-2.0
"""What requests may say."""

from __future__ import annotations

from p4reduce_controller.job import Cause, RefusedError

MAX_NAME = 100
MAX_ADDRESS = 262  # a host name's 255, a colon, a port


def printable(text: str, longest: int = MAX_NAME) -> str:
    """Return what of `text` can be shown in a terminal, cut to `longest` characters."""
    return "".join(filter(str.isprintable, text))[:longest]


def check_name(name: str) -> None:
    """Raise RefusedError unless it can be a job's."""
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise RefusedError(
            Cause.INVALID,
            f"{name[: MAX_NAME + 1]!r} is no job name: 1 to {MAX_NAME} printable characters, "
            "no space at either end",
        )


def check_number(what: str, value: int, lowest: int, highest: int) -> None:
    """Raise RefusedError unless `value` is within the two."""
    if not lowest <= value <= highest:
        raise RefusedError(Cause.INVALID, f"{what} {value} is not within {lowest} and {highest}")
