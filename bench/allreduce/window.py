# SPDX-License-Identifier: Apache-2.0
"""What the window of a job's slots does: all-reduces with it and with all slots at once, in turns.

In turns by the same processes, as what else the machine does would otherwise be all the difference.
Two places: Mininet hosts with links of few Mbit/s, where slots beyond the bandwidth-delay product
only queue; and this machine alone, where the CPU is the limit, and more slots make larger batches,
which are cheaper.

    python -m bench.allreduce.window [--workers 4] [--slots 32 128 512] [--bandwidth 10]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.protocol.slots import SlotMachine
from p4reduce.session.session import Session
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import UnavailableError

from bench.machine import describe, machine
from bench.ranks import run_ranks

SLOTS = (32, 128, 512)
SWITCHES = ("embedded", "bmv2")
SECONDS_AT_LINK_RATE = 0.8  # of each tensor, on slow links
MEGABYTES_LOCALLY = 2.0
TURNS = 7
TIMEOUT = 300.0
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


@dataclass(frozen=True)
class Result:
    """One number of slots. Medians of the slowest rank's times, in milliseconds.

    Attributes:
        window: the smallest that any rank had at the end of a turn with it.
        repeated, repeated_all: contributions that timers sent again, by those sent once; with the
            window, and with all slots at once.
        round_trip_ms, round_trip_all_ms: the median, of rank 0.
    """

    name: str
    megabytes: float
    with_window_ms: float
    all_slots_ms: float
    window: int
    repeated: float
    repeated_all: float
    round_trip_ms: float
    round_trip_all_ms: float


def turns(blocks: int, slots: int, report: Path) -> None:
    """What each rank does: a tensor with the window, one without, and so on."""
    tensor = np.ones(blocks * 256, np.float32)
    out = np.empty_like(tensor)
    figures: dict[str, list[list[float]]] = {"window": [], "all": []}
    with p4reduce.init(slots=slots, timeout=TIMEOUT) as comm:
        machine = slot_machine(comm)
        figures_of = machine.state.structure
        floor, size = figures_of.floor, figures_of.window
        for turn in range(2 * TURNS):
            kind = ("window", "all")[turn % 2]
            comm.barrier()
            time.sleep(0.05)  # for what the last turn left in queues
            # A window that has a floor of all slots is all of them.
            if kind == "window":
                figures_of.floor, figures_of.window = floor, size
            else:
                size, figures_of.floor, figures_of.window = figures_of.window, slots, slots
            comm.barrier()
            before = comm.stats
            start = time.perf_counter()
            comm.allreduce(tensor, out=out)
            seconds = time.perf_counter() - start
            after = comm.stats
            if not (out == comm.size).all():
                raise SystemExit("the sum is wrong")
            again = after.retransmissions - before.retransmissions
            sent = after.frames_sent - before.frames_sent - again
            figures[kind].append([seconds, again, sent, size, after.round_trip_p50])
    report.write_text(json.dumps(figures))


def slot_machine(comm: p4reduce.Communicator) -> SlotMachine:
    """The inside of a communicator."""
    # private: the size of the window is nobody's to set but the engine's.
    session = comm._session
    assert isinstance(session, Session)
    # private: as above
    machine = session._engine.machine
    assert isinstance(machine, SlotMachine)
    return machine


def measure(switch: str, bandwidth: float | None, workers: int, slots: int) -> Result:
    """One number of slots, over a switch of its own."""
    choice = choose(switch, "local" if bandwidth is None else "mininet", bandwidth=bandwidth)
    megabytes = MEGABYTES_LOCALLY if bandwidth is None else SECONDS_AT_LINK_RATE * bandwidth / 8
    blocks = int(megabytes * 1e6 / 1024)
    arguments = ["--blocks", str(blocks), "--slots", str(slots)]
    reports: list[Any] = run_ranks(
        choice, workers, ["-m", "bench.allreduce.window", *arguments], TIMEOUT
    )
    mine = {kind: np.array([one[kind] for one in reports])[:, 1:] for kind in ("window", "all")}
    seconds = {kind: float(np.median(of[:, :, 0].max(axis=0))) for kind, of in mine.items()}
    again = {kind: float(of[:, :, 1].sum() / of[:, :, 2].sum()) for kind, of in mine.items()}
    trips = {kind: float(np.median(of[0, :, 4])) for kind, of in mine.items()}
    links = "this machine" if bandwidth is None else f"{bandwidth:g} Mbit/s"
    return Result(
        name=f"{switch}, {links}, {workers} workers, {slots} slots",
        megabytes=megabytes,
        with_window_ms=seconds["window"] * 1e3,
        all_slots_ms=seconds["all"] * 1e3,
        window=int(mine["window"][:, :, 3].min()),
        repeated=again["window"],
        repeated_all=again["all"],
        round_trip_ms=trips["window"] * 1e3,
        round_trip_all_ms=trips["all"] * 1e3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, nargs="+", default=list(SLOTS))
    parser.add_argument("--switches", nargs="+", choices=SWITCHES, default=["embedded"])
    parser.add_argument("--bandwidth", type=float, default=10.0, help="Mbit/s of the slow links")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--blocks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        turns(options.blocks, options.slots[0], options.report)
        return
    host = machine()
    print(describe(host))
    print(f"{'':48}{'window':>12}{'all slots':>12}{'size':>7}{'repeated':>17}{'round trip':>18}")
    results = []
    for switch in options.switches:
        for bandwidth in (options.bandwidth, None):
            for slots in options.slots:
                try:
                    one = measure(switch, bandwidth, options.workers, slots)
                except UnavailableError as error:
                    print(error, file=sys.stderr)
                    continue
                results.append(one)
                print(
                    f"{one.name:48}{one.with_window_ms:9.0f} ms{one.all_slots_ms:9.0f} ms"
                    f"{one.window:7d}{one.repeated:8.1%}{one.repeated_all:9.1%}"
                    f"{one.round_trip_ms:7.1f}{one.round_trip_all_ms:8.1f} ms",
                    flush=True,
                )
    if not results:
        sys.exit(CANNOT_RUN)
    if options.json is not None:
        report = {"machine": host, "results": [asdict(one) for one in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
