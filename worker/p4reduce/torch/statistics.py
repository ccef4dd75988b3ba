# SPDX-License-Identifier: Apache-2.0
"""Which collectives went through the switch and which to Gloo, and why; bytes on the wire."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch's import passes through this module
    from p4reduce.communicator import Communicator


@dataclass(frozen=True)
class Tally:
    """The calls of one kind in this process.

    Attributes:
        calls: of the collective.
        bytes: of this rank's input tensors, as they are in memory: before narrow lanes or
            compression.
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
        bytes_sent: on the wire to the switch, in whole Ethernet frames, by all collectives of
            `switch` together, barriers and repetitions included. Compare it with their `bytes`
            to see what narrow lanes, compression or blocks of zeros save.
        bytes_received: on the wire from the switch, counted in the same way.
    """

    switch: Mapping[str, Tally]
    gloo: Mapping[str, Tally]
    bytes_sent: int = 0
    bytes_received: int = 0


_lock = threading.Lock()
_switch: defaultdict[str, Tally] = defaultdict(Tally)
_gloo: defaultdict[str, Tally] = defaultdict(Tally)
_open: list[Communicator] = []
_ended = [0, 0]  # bytes that closed communicators sent and received


def statistics() -> Statistics:
    """Return the counts of this process so far, of all groups, those destroyed included."""
    with _lock:
        figures = [one.stats for one in _open]
        sent = _ended[0] + sum(one.bytes_sent for one in figures)
        received = _ended[1] + sum(one.bytes_received for one in figures)
        return Statistics(dict(_switch), dict(_gloo), sent, received)


def count_bytes_of(comm: Communicator) -> None:
    """Count a communicator's bytes on the wire from now on."""
    with _lock:
        _open.append(comm)


def keep_bytes_of(comm: Communicator) -> None:
    """Keep the bytes of a communicator that is closed."""
    with _lock:
        if comm in _open:
            _open.remove(comm)
            figures = comm.stats
            _ended[0] += figures.bytes_sent
            _ended[1] += figures.bytes_received


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
