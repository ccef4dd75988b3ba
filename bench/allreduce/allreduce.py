# SPDX-License-Identifier: Apache-2.0
"""All-reduce goodput of real worker processes through a real switch process, over sizes.

Goodput is a tensor's bytes by the time that one all-reduce of it takes (the median over
repetitions of the slowest rank's time), so it compares with a link's rate: a worker both sends and
receives that much. Switch, controller and all workers share this machine's cores. With --bandwidth
each worker is a Mininet host with a link of that rate to each switch, and the share of the link's
bound is shown: the time that all frames of a tensor take on it, headers included.

    python -m bench.allreduce.allreduce [--workers 4] [--switch embedded|bmv2] [--json FILE]

What a further switch beside the first one gains where links are the limit, in turns:

    python -m bench.allreduce.allreduce --bandwidth 20 --workers 2 --switches 1 2 4 --turns 3
        --sizes 4194304 --slots 64 --dtypes float32
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import p4reduce
from p4reduce.wire.format import PAYLOAD_FRAME_BYTES
from p4reduce.wire.header import PAYLOAD_BYTES

from bench.measure import calls_in_turns, in_turns, slowest, timed
from bench.program import SWITCH, Option, Row, read_options, run, some, tell
from bench.ranks import run_ranks

SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22]  # bytes
# BMv2 queues 64 frames a port, and a result may be two: more slots than that would lose some.
SLOTS = {"embedded": [32, 128], "bmv2": [32]}
SECONDS = 1.5  # of repetitions for each size
MAX_REPETITIONS = 400


def sweep(sizes: list[int], dtypes: list[str], slots: int) -> dict[str, Any]:
    """What each rank does: all-reduces every size repeatedly; returns its times."""
    times: dict[str, list[float]] = {}
    repeated: dict[str, int] = {}
    with p4reduce.init(slots=slots) as comm:
        for dtype, size in itertools.product(dtypes, sizes):
            tensor = np.ones(size // 4, dtype)
            out = np.empty_like(tensor)
            call = partial(comm.allreduce, tensor, out=out)
            before = comm.stats.retransmissions
            # All ranks must agree how often, so they sum up how long one takes.
            typical = comm.allreduce(np.array([timed(call, comm.barrier)]))[0] / comm.size
            repetitions = int(min(MAX_REPETITIONS, max(5, SECONDS / typical)))
            key = f"{dtype} {size}"
            times |= calls_in_turns(comm, {key: call}, repetitions)
            if not (out == comm.size).all():
                raise SystemExit(f"{key}: the sum is wrong")
            repeated[key] = comm.stats.retransmissions - before
    return {"times": times, "retransmissions": repeated}


def measure(options: argparse.Namespace, switches: int, slots: int) -> list[Row]:
    """Run the sweep over switches of its own; the job has `slots` of each."""
    bandwidth, workers = options.bandwidth, options.workers
    given = some(options, "switch", "bandwidth", "sizes", "dtypes")
    reports = run_ranks(sweep, workers, switches=switches, slots=slots, **given)
    links = "" if bandwidth is None else f", {bandwidth:g} Mbit/s"
    number = "" if switches == 1 else f"{switches} x "
    rows: list[Row] = []
    for key in reports[0]["times"]:
        dtype, size = key.split()
        seconds = slowest(reports, "times", key)
        median, blocks = float(np.median(seconds)), -(-int(size) // PAYLOAD_BYTES)
        bound = None
        if bandwidth is not None:
            bound = blocks * PAYLOAD_FRAME_BYTES * 8 / (bandwidth * 1e6 * switches)
        rows.append(
            {
                "name": f"{number}{options.switch}{links}, {workers} workers, {slots} slots, "
                f"{dtype}",
                "bytes": int(size),
                "repetitions": len(seconds),
                "median_ms": median * 1e3,
                "p90_ms": float(np.percentile(seconds, 90)) * 1e3,
                "goodput_mbit_s": int(size) * 8 / median / 1e6,
                "contributions_per_second": blocks * workers / median,
                "retransmissions": sum(report["retransmissions"][key] for report in reports),
                "share_of_bound": bound and bound / median,
            }
        )
    return rows


def rows_of(options: argparse.Namespace) -> Iterator[Row]:
    """Measure everything. Of several turns, each row is from the one with that row's median."""
    for slots in options.slots or SLOTS[options.switch]:
        ways = {
            str(number): partial(measure, options, number, slots) for number in options.switches
        }
        for turns in in_turns(ways, options.turns).values():
            for alike in zip(*turns, strict=True):
                yield sorted(alike, key=lambda row: float(row["median_ms"]))[len(alike) // 2]


def main() -> None:
    options = read_options(
        __doc__,
        workers=4,
        switch=SWITCH,
        sizes=Option(SIZES, "in bytes"),
        dtypes=Option(["float32", "int32"], choices=("float32", "int32")),
        slots=Option([], "default: 32, and 128 if embedded", int),
        bandwidth=Option(None, "of each link, in Mbit/s; takes root", float),
        switches=Option([1], "side by side"),
        turns=1,
    )
    tell(options, rows_of(options))


if __name__ == "__main__":
    run(main)
