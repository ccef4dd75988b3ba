# SPDX-License-Identifier: Apache-2.0
"""Which collectives went through the switch and which to Gloo, and why."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tally:
    """The calls of one kind in this process.

    Attributes:
        calls: of the collective.
        bytes: of this rank's input tensors.
    """

    calls: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Statistics:
    """What this process's groups and hooks have done so far.

    Attributes:
        switch: what went through the switch, by the collective's name ("all_reduce").
        gloo: what was delegated to Gloo, by the collective's name and the reason
            ("all_reduce: MAX").
    """

    switch: Mapping[str, Tally]
    gloo: Mapping[str, Tally]


_lock = threading.Lock()
_switch: defaultdict[str, Tally] = defaultdict(Tally)
_gloo: defaultdict[str, Tally] = defaultdict(Tally)


def statistics() -> Statistics:
    """Return the counts of this process so far, of all groups, those destroyed included."""
    with _lock:
        return Statistics(dict(_switch), dict(_gloo))


def count_switch(collective: str, size: int) -> None:
    """Count a collective of `size` bytes that goes through the switch."""
    _count(_switch, collective, size)


def count_gloo(collective: str, reason: str, size: int) -> None:
    """Count a collective of `size` bytes that goes to Gloo, and why."""
    _count(_gloo, f"{collective}: {reason}", size)


def _count(tallies: defaultdict[str, Tally], key: str, size: int) -> None:
    with _lock:
        before = tallies[key]
        tallies[key] = Tally(before.calls + 1, before.bytes + size)
