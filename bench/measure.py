# SPDX-License-Identifier: Apache-2.0
"""Times that can be compared: in turns, of the slowest rank, as medians with their range."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_FRAME_BYTES
from p4reduce_lab.processes.threads import thread_seconds

T = TypeVar("T")


def in_turns(
    ways: Mapping[str, Callable[[], T]],
    turns: int,
    *,
    warm_up: int = 0,
    order: Callable[[int, Sequence[str]], Iterable[str]] = lambda turn, names: names,
) -> dict[str, list[T]]:
    """Call each way once per turn, so that what else the machine does meets all alike.

    There are `warm_up` turns before, which do not count. `order` is that of the names in a turn.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    for turn in range(warm_up + turns):
        for name in order(turn, list(ways)):
            came = ways[name]()
            if turn >= warm_up:
                found[name].append(came)
    return found


def there_and_back(turn: int, names: Sequence[str]) -> Iterable[str]:
    """An order: every other turn goes backwards, as a machine may become slower meanwhile."""
    return reversed(names) if turn % 2 else names


def drawn(seed: int) -> Callable[[int, Sequence[str]], Iterable[str]]:
    """An order that is random, and the same on all ranks."""
    rng = np.random.default_rng(seed)
    return lambda _, names: [names[index] for index in rng.permutation(len(names))]


def timed(call: Callable[[], object], meet: Callable[[], object] = lambda: None) -> float:
    """Return the seconds of a call, after the ranks have met."""
    meet()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def calls_in_turns(
    comm: p4reduce.Communicator,
    calls: Mapping[str, Callable[[], object]],
    turns: int,
    *,
    warm_up: int = 0,
) -> dict[str, list[float]]:
    """Return the seconds of each call in each turn on this rank; before it, the ranks meet."""
    ways = {name: lambda call=call: timed(call, comm.barrier) for name, call in calls.items()}
    return in_turns(ways, turns, warm_up=warm_up)


def slowest(reports: Sequence[Any], *keys: Any) -> npt.NDArray[np.float64]:
    """Return the slowest rank's time of each repetition.

    `keys` say where a rank's report has its times, as in report[keys[0]][keys[1]].
    """
    times = list(reports)
    for key in keys:
        times = [one[key] for one in times]
    return np.asarray(np.max(times, axis=0), np.float64)


def median_of(reports: Sequence[Any], *keys: Any) -> float:
    """Return the median of `slowest`."""
    return float(np.median(slowest(reports, *keys)))


def spread(numbers: Sequence[float], form: str = ".1f", unit: str = "") -> str:
    """Return the median with the least and the most, as in "2.0 s (1.0 to 3.0)"."""
    median = f"{statistics.median(numbers):{form}}{unit}"
    return f"{median} ({min(numbers):{form}} to {max(numbers):{form}})"


def bytes_of(comm: p4reduce.Communicator, call: Callable[[], object]) -> tuple[int, int]:
    """Return the bytes of whole frames of a call: sent, without repetitions, and received."""
    before = comm.stats
    call()
    after = comm.stats
    repeated = after.retransmissions - before.retransmissions
    filled = after.blocks_sent - before.blocks_sent
    empty = after.frames_sent - before.frames_sent - repeated - filled
    up = filled * PAYLOAD_FRAME_BYTES + empty * EMPTY_FRAME_BYTES
    return up, after.bytes_received - before.bytes_received


def cpu_seconds(process: int | str) -> float:
    """Return what the threads of a process have computed so far, in seconds."""
    seconds = thread_seconds(process)
    if not seconds:
        raise ProcessLookupError(f"process {process} has ended")
    return sum(seconds.values())
