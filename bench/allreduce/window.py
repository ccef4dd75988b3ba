# SPDX-License-Identifier: Apache-2.0
"""What the window of a job's slots does: all-reduces with it and with all slots at once, in turns.

In turns by the same processes, as what else the machine does would otherwise be all the difference.
Two places: Mininet hosts with links of few Mbit/s, where slots beyond the bandwidth-delay product
only queue; and this machine alone, where the CPU is the limit, and more slots make larger batches,
which are cheaper. Times are medians of the slowest rank's. `window` is the smallest that any rank
had at the end of a turn with it, `repeated` the contributions that timers sent again, by those sent
once, and `round_trip_ms` the median of rank 0; `_all` is with all slots at once.

    python -m bench.allreduce.window [--workers 4] [--slots 32 128 512] [--bandwidth 10]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import p4reduce
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.session import Session
from p4reduce_lab.errors import UnavailableError

from bench.measure import in_turns, timed
from bench.program import CANNOT_RUN, Option, Row, read_options, run, tell
from bench.ranks import TIMEOUT, run_ranks

SECONDS_AT_LINK_RATE = 0.8  # of each tensor, on slow links
MEGABYTES_LOCALLY = 2.0
TURNS = 7
WINDOW, ALL = "window", "all"


def turns(blocks: int, slots: int) -> dict[str, list[list[float]]]:
    """What each rank does: a tensor with the window, one without, and so on."""
    tensor = np.ones(blocks * 256, np.float32)
    out = np.empty_like(tensor)
    with p4reduce.init(slots=slots, timeout=TIMEOUT) as comm:
        # private: the size of the window is nobody's to set but the engine's.
        session = comm._session
        assert isinstance(session, Session)
        # private: as above
        machine = session._engine.machine
        assert isinstance(machine, SlotMachine)
        state = machine.state.structure
        floor, size = state.floor, state.window

        def turn(kind: str) -> list[float]:
            nonlocal size
            comm.barrier()
            time.sleep(0.05)  # for what the last turn left in queues
            # A window that has a floor of all slots is all of them.
            if kind == WINDOW:
                state.floor, state.window = floor, size
            else:
                size, state.floor, state.window = state.window, slots, slots
            comm.barrier()
            before = comm.stats
            seconds = timed(lambda: comm.allreduce(tensor, out=out))
            after = comm.stats
            if not (out == comm.size).all():
                raise SystemExit("the sum is wrong")
            again = after.retransmissions - before.retransmissions
            sent = after.frames_sent - before.frames_sent - again
            return [seconds, again, sent, size, after.round_trip_p50]

        return in_turns({kind: partial(turn, kind) for kind in (WINDOW, ALL)}, TURNS)


def measure(switch: str, bandwidth: float | None, workers: int, slots: int) -> Row:
    """One number of slots, over a switch of its own."""
    megabytes = MEGABYTES_LOCALLY if bandwidth is None else SECONDS_AT_LINK_RATE * bandwidth / 8
    given = {"blocks": int(megabytes * 1e6 / 1024), "slots": slots}
    reports = run_ranks(turns, workers, switch=switch, bandwidth=bandwidth, **given)
    links = "this machine" if bandwidth is None else f"{bandwidth:g} Mbit/s"
    row = {
        "name": f"{switch}, {links}, {workers} workers, {slots} slots",
        "megabytes": megabytes,
    }
    both = {kind: np.array([one[kind] for one in reports])[:, 1:] for kind in (WINDOW, ALL)}
    ms = {kind: 1e3 * float(np.median(of[:, :, 0].max(axis=0))) for kind, of in both.items()}
    row |= {"with_window_ms": ms[WINDOW], "all_slots_ms": ms[ALL]}
    row["window"] = int(both[WINDOW][:, :, 3].min())
    for kind, end in ((WINDOW, ""), (ALL, "_all")):
        row[f"repeated{end}"] = float(both[kind][:, :, 1].sum() / both[kind][:, :, 2].sum())
    for kind, end in ((WINDOW, ""), (ALL, "_all")):
        row[f"round_trip{end}_ms"] = 1e3 * float(np.median(both[kind][0, :, 4]))
    return row


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """What can be measured here."""
    for switch, bandwidth, slots in itertools.product(
        options.switches, (options.bandwidth, None), options.slots
    ):
        try:
            yield measure(switch, bandwidth, options.workers, slots)
        except UnavailableError as error:  # noqa: PERF203
            print(error, file=sys.stderr)


def main() -> None:
    options = read_options(
        __doc__,
        workers=4,
        slots=[32, 128, 512],
        switches=Option(["embedded"], choices=("embedded", "bmv2")),
        bandwidth=Option(10.0, "Mbit/s of the slow links"),
    )
    if not tell(options, rows(options)):
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    run(main)
