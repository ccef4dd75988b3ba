# SPDX-License-Identifier: Apache-2.0
"""Access to the JSON: values are looked up and checked, or refused with their place.

This module does not know what a program consists of.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from p4reduce_switch.program.ir import NOWHERE, SourceLocation
from p4reduce_switch.program.limits import MAX_ENTRIES, MAX_WIDTH
from p4reduce_switch.program.load_error import LoadError

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading JSON ends in that is not what BMv2's format says."""

_T = TypeVar("_T")
Json = Mapping[str, Any]


def refusal(construct: str, source: SourceLocation) -> LoadError:
    where = f"{source}: " if source.filename else ""
    return LoadError(f"{where}{construct} is not supported")


def source_of(item: Json, default: SourceLocation = NOWHERE) -> SourceLocation:
    info = item.get("source_info")
    if not info:
        return default
    return SourceLocation(
        as_text(info.get("filename", ""), "the file name of a source_info"),
        as_number(info.get("line", 0), "the line of a source_info"),
        as_text(info.get("source_fragment", ""), "the fragment of a source_info"),
    )


@contextlib.contextmanager
def located(source: SourceLocation) -> Iterator[None]:
    """Add the source line to errors about malformed JSON in the block."""
    try:
        yield
    except DAMAGE as error:
        if not source.filename:
            raise
        raise damaged(error, source) from error


def damaged(error: Exception, source: SourceLocation = NOWHERE) -> LoadError:
    """Return the error for damaged JSON that other checks did not find, since they expect p4c's
    output."""
    where = f"{source}: " if source.filename else ""
    return LoadError(f"{where}not the BMv2 JSON format: {type(error).__name__}: {error}")


def find(items: Mapping[Any, _T], key: Any, what: str, source: SourceLocation) -> _T:
    """Return the object that a name or number refers to."""
    try:
        return items[key]
    except KeyError:
        raise LoadError(f"{source}: there is no {what} {_shown(key)}") from None


def as_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{what} is {_shown(value)}, not a string")
    return value


def as_number(value: Any, what: str, least: int = 0, most: int = 0xFFFFFFFF) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LoadError(f"{what} is {_shown(value)}, not an integer of at least {least}")
    if value > most:
        raise LoadError(f"{what} is {_shown(value)}; more than {most} is not supported")
    return value


def as_width(value: Any, what: str) -> int:
    """Return a number of bits."""
    return as_number(value, f"the width of {what}", 1, MAX_WIDTH)


def as_size(value: Any, what: str) -> int:
    """Return a number of entries."""
    return as_number(value, f"the size of {what}", 0, MAX_ENTRIES)


def as_hex(value: Any, what: str) -> int:
    """Return a number that is written in hexadecimal."""
    number = int(as_text(value, what), 16)
    if number.bit_length() > MAX_WIDTH:
        raise LoadError(
            f"{what} has {number.bit_length()} bits; more than {MAX_WIDTH} are not supported"
        )
    return number


def as_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise LoadError(f"{what} is {_shown(value)}, not true or false")
    return value


def constant_of(item: Json) -> int | None:
    """Return the value of a constant argument; None for others."""
    return as_hex(item["value"], "a constant") if item["type"] == "hexstr" else None


def _shown(value: Any) -> str:
    """What a value is, for an error: not all of one that is large."""
    return reprlib.repr(value)
