# SPDX-License-Identifier: Apache-2.0
"""The model of time beside real processes on shaped links.

Ranks are hosts of a Mininet network whose links are limited (htb at both ends) to a rate that this
machine's cores keep up with. They reduce some tensors in turns; shown are the median and the range
of the slowest rank's time, and what `p4reduce_lab.planning` says.

What software takes for each call is measured in the same run: all processes share this machine's
cores, so that it grows with their number, and with what else the machine does. It is the time of an
all-reduce of a single block, less what the model says for that without it. No other figure of the
model is fitted to anything here. All times are in seconds; `off` is the model's time by the
measured one, less 1, and `call` is software in the model's time.

    python -m bench.scale.measured [--workers 2 4 8] [--bandwidth 5] [--json FILE]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.tensors.precision import PRECISIONS
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster, by_switches

from bench.measure import in_turns, slowest, timed
from bench.program import Option, Row, read_options, run, tell
from bench.ranks import TIMEOUT, run_ranks

SLOTS = 32
SEED = 5
REPETITIONS = 5
WORKERS, SIDE_BY_SIDE, BANDWIDTH = (2, 4, 8), (4,), 5.0  # Mbit/s of a link

ONE_BLOCK = PlannedTensor(256)  # tells what a call takes
CASES = (
    PlannedTensor(131_072),
    PlannedTensor(262_144, "int16"),
    PlannedTensor(524_288, "int8"),
    PlannedTensor(262_144, "int32", 0.1, "aligned"),
    PlannedTensor(131_072, "int32", 0.1, "independent"),
    PlannedTensor(16_384),
)


def gradient(tensor: PlannedTensor, rank: int, repetition: int) -> npt.NDArray[np.float32]:
    """What a rank reduces."""
    lanes = PRECISIONS[tensor.precision].lanes
    blocks = tensor.elements // lanes
    own = np.random.default_rng([SEED, repetition, 1 + rank])
    values = own.standard_normal((blocks, lanes)).astype(np.float32)
    draw = np.random.default_rng([SEED, repetition]) if tensor.overlap == "aligned" else own
    values[draw.permutation(blocks)[round(blocks * tensor.density) :]] = 0
    return values.reshape(-1)


def reduce_all() -> list[list[float]]:
    """What each rank does: returns its times, by case and repetition."""
    cases = (ONE_BLOCK, *CASES)
    with p4reduce.init(slots=SLOTS, timeout=TIMEOUT) as comm:
        comm.allreduce(gradient(cases[0], comm.rank, 0))  # timers learn how long round trips are

        def reduce_one(tensor: PlannedTensor, repetitions: Iterator[int]) -> float:
            mine = gradient(tensor, comm.rank, next(repetitions))
            precision = None if tensor.precision == "int32" else tensor.precision
            return timed(partial(comm.allreduce, mine, precision=precision), comm.barrier)

        ways = {
            str(number): partial(reduce_one, tensor, itertools.count())
            for number, tensor in enumerate(cases)
        }
        return list(in_turns(ways, REPETITIONS).values())


def measure(workers: int, switches: int, megabits: float) -> Iterator[Row]:
    """All cases of a number of workers and of switches side by side, in a network of their own."""
    reports = run_ranks(reduce_all, workers, switches=switches, bandwidth=megabits)
    link = PlannedLink(megabits * 1e6, overhead=0)
    cluster = Cluster(workers, link, switch=SWITCHES["embedded"], slots=SLOTS)
    times = slowest(reports)  # by case and repetition
    alone = by_switches(replace(cluster, call=0.0), ONE_BLOCK, cluster.star(switches)).seconds
    cluster = replace(cluster, call=max(0.0, float(np.median(times[0])) - alone))
    for tensor, seconds in zip(CASES, times[1:], strict=True):
        model = by_switches(cluster, tensor, cluster.star(switches)).seconds
        median = float(np.median(seconds))
        yield {
            "workers": workers,
            "switches": switches,
            "megabits": megabits,
            **asdict(tensor),
            "model": model,
            "call": cluster.call,
            "median": median,
            "fastest": float(seconds.min()),
            "slowest": float(seconds.max()),
            "off": model / median - 1,
        }


def what(one: Row) -> str:
    """The case, for people."""
    size = f"{one['elements']:,} floats"
    if one["precision"] != "int32":
        size += f" in {one['precision']}"
    if one["density"] == 1:
        return size
    return f"{size}, {one['density']:.0%} of the blocks, {one['overlap']}"


def rows(workers: list[int], side_by_side: list[int], bandwidth: float) -> Iterator[Row]:
    """Measure all numbers of workers, and some of them with two switches.

    Raises UnavailableError: there is no Mininet here.
    """
    for number in workers:
        yield from measure(number, 1, bandwidth)
    for number in side_by_side:
        # With two links each, ranks would have this machine's cores do twice as much.
        yield from measure(number, 2, bandwidth / 2)


def main() -> None:
    options = read_options(
        __doc__,
        workers=list(WORKERS),
        side_by_side=Option(list(SIDE_BY_SIDE), "workers with two switches as well"),
        bandwidth=Option(BANDWIDTH, "of each link, in Mbit/s"),
    )
    tell(options, rows(options.workers, options.side_by_side, options.bandwidth))


if __name__ == "__main__":
    run(main)
