# SPDX-License-Identifier: Apache-2.0
"""What the generator gives. It has a module of its own because it is kept in the cache: a switch
that finds it there needs no generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PythonEvent:
    """An event for Python, by its number.

    kind: "digest" (name is its name), "log" (text), "assert" or "assume" (where). values: for each,
    how many words it takes and whether it is two's complement.
    """

    kind: str
    text: str
    values: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class GeneratedC:
    """The C source of a program, and what Python needs to know about it.

    `objects`: the numbers of the program's state objects (control.h), by kind and name. `events`:
    the events for Python, by number. `queued`: whether it has egress queues and
    p4r_program_release.
    """

    source: str
    objects: Mapping[tuple[str, str], int]
    events: tuple[PythonEvent, ...]
    queued: bool
