# SPDX-License-Identifier: Apache-2.0
"""Access to the JSON: values are looked up and checked here, or refused with where they are from.

Nothing here knows what a program is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .program import NOWHERE, Source

__all__ = [
    "Json",
    "LoadError",
    "as_flag",
    "as_number",
    "as_text",
    "constant_of",
    "find",
    "refusal",
    "source_of",
]

_T = TypeVar("_T")
Json = Mapping[str, Any]


class LoadError(Exception):
    """The program cannot be loaded; the message names the construct and the source line."""


def refusal(construct: str, source: Source) -> LoadError:
    where = f"{source}: " if source.filename else ""
    return LoadError(f"{where}{construct} is not supported")


def source_of(item: Json, default: Source = NOWHERE) -> Source:
    info = item.get("source_info")
    if not info:
        return default
    return Source(
        as_text(info.get("filename", ""), "the file name of a source_info"),
        as_number(info.get("line", 0), "the line of a source_info"),
        as_text(info.get("source_fragment", ""), "the fragment of a source_info"),
    )


def find(items: Mapping[Any, _T], key: Any, what: str, source: Source) -> _T:
    """What a name or number stands for."""
    try:
        return items[key]
    except KeyError:
        raise LoadError(f"{source}: there is no {what} {key!r}") from None


def as_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise LoadError(f"{what} is {value!r}, not a string")
    return value


def as_number(value: Any, what: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LoadError(f"{what} is {value!r}, not an integer of at least {least}")
    return value


def as_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise LoadError(f"{what} is {value!r}, not true or false")
    return value


def constant_of(item: Json) -> int | None:
    """The value of an argument that is a constant, None if it is something else."""
    return int(item["value"], 16) if item["type"] == "hexstr" else None
