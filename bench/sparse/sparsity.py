# SPDX-License-Identifier: Apache-2.0
"""Time of an all-reduce against density, where links are the limit, next to the models.

Each worker is a Mininet host with a link of few Mbit/s to the switch, so that neither switch nor
workers are what is waited for. A tensor of S bytes in blocks of 1,024; each rank has something in a
share D of them: all ranks in the same ones (aligned), or each in its own random ones (independent).
With links of B bytes a second each way and n ranks:

- in-network, by OmniReduce's model: D S / B, where D is the union's density, as all of the union
  comes down to every rank: the ranks' own for aligned blocks, 1 - (1 - D)^n for independent ones;
- the ring's lower bound for dense data, 2 (n - 1) / n S / B. A ring over TCP is measured as well,
  between the same hosts and through the same switch.

Neither counts headers: here they are 78 bytes a frame. Times are the slowest rank's; `union` is the
share of the blocks that any rank has, and `repeated` that of the contributions that timers sent
again.

    python -m bench.sparse.sparsity [--switches embedded bmv2] [--workers 2 4 8] [--bandwidth 5]
        [--megabytes 1.5] [--json FILE] [--docs]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import p4reduce
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks.mininet_net import SUBNET
from p4reduce_lab.planning.framing import OVERLAPS

from bench.measure import slowest, timed
from bench.pages import FIGURES, IMAGES, pivot
from bench.program import CANNOT_RUN, Option, Row, read_options, run, tell, tell_table
from bench.ranks import TIMEOUT, run_ranks
from bench.sparse.tcp_ring import Ring
from bench.sparse.tensors import BLOCK_BYTES, draw, is_sum, tensor

DENSITIES = (1.0, 0.4, 0.1, 0.01)
RING = "TCP ring"  # in the place of how blocks overlap
SLOTS = 32  # what BMv2's queues hold; on slow links more would only wait in the links' queues
SEED = 4
SECONDS = 1.5  # of repetitions at each point, by the model
REPETITIONS = (3, 12)  # at least, at most
PLOT = Path(__file__).resolve().parents[2] / "build" / "bench" / "sparsity.png"


class Point(NamedTuple):
    """What is measured together: repetitions, each with other blocks."""

    density: float
    overlap: str
    union: float
    repetitions: int

    @property
    def key(self) -> str:
        return f"{self.overlap} {self.density:g}"


def points(workers: int, dense_seconds: float) -> Iterator[Point]:
    """What is measured for a number of workers; `dense_seconds` is S / B."""
    for density in DENSITIES:
        for overlap in OVERLAPS if density < 1 else OVERLAPS[:1]:
            union = 1 - (1 - density) ** workers if overlap == "independent" else density
            least, most = REPETITIONS
            count = min(most, max(least, round(SECONDS / (union * dense_seconds))))
            yield Point(density, overlap, union, count)
    yield Point(1.0, RING, 1.0, REPETITIONS[0])


def reduce_all(blocks: int, dense_seconds: float) -> dict[str, dict[str, Any]]:
    """What each rank does: returns its times and counts of each point."""
    with p4reduce.init(slots=SLOTS, timeout=TIMEOUT) as comm:
        hosts = [f"{SUBNET}.{rank + 1}" for rank in range(comm.size)]
        with Ring(comm.rank, hosts, comm.barrier) as ring:
            return {
                point.key: repeat(point, comm, ring, blocks)
                for point in points(comm.size, dense_seconds)
            }


def repeat(point: Point, comm: p4reduce.Communicator, ring: Ring, blocks: int) -> dict[str, Any]:
    """This rank's seconds of each repetition, and the share that timers sent again."""
    by_ring = point.overlap == RING
    overlap = "aligned" if by_ring else point.overlap
    seed = [SEED, comm.size, round(1e6 * point.density), OVERLAPS.index(overlap)]
    before, seconds = comm.stats, []
    out = np.empty(blocks * BLOCK_BYTES // 4, np.float32)
    for repetition in range(point.repetitions):
        masks = draw(overlap, comm.size, blocks, point.density, [*seed, repetition])
        mine = tensor(masks, comm.rank)
        out[:] = mine
        call = partial(comm.allreduce, mine, out=out)
        seconds.append(timed(partial(ring.allreduce, out) if by_ring else call, comm.barrier))
        if by_ring:
            comm.barrier()  # until what lies in this host's queue has gone out
        if not is_sum(out, masks):
            raise SystemExit(f"{point}: the sum is wrong")
    frames, again = (
        getattr(comm.stats, name) - getattr(before, name)
        for name in ("frames_sent", "retransmissions")
    )
    return {"seconds": seconds, "repeated": again / frames}


def measure(switch: str, workers: int, blocks: int, bandwidth: float) -> Iterator[Row]:
    """All points of one switch and number of workers, in a network of their own."""
    dense = blocks * BLOCK_BYTES * 8 / bandwidth / 1e6
    given: dict[str, Any] = {"blocks": blocks, "dense_seconds": dense}
    reports = run_ranks(reduce_all, workers, switch=switch, bandwidth=bandwidth, **given)
    ring = 2 * (workers - 1) / workers * dense
    for point in points(workers, dense):
        figures = [report[point.key] for report in reports]
        seconds = slowest(figures, "seconds")
        median = float(np.median(seconds))
        model = ring if point.overlap == RING else point.union * dense
        yield {
            "switch": switch,
            "workers": workers,
            "overlap": point.overlap,
            "density": point.density,
            "union": point.union,
            "repetitions": point.repetitions,
            "median_ms": median * 1e3,
            "fastest_ms": float(seconds.min()) * 1e3,
            "slowest_ms": float(seconds.max()) * 1e3,
            "model_ms": model * 1e3,
            "over_model": median / model,
            "ring_bound_ms": ring * 1e3,
            "times_ring": ring / median,
            "repeated": float(np.mean([one["repeated"] for one in figures])),
        }


def rows(options: argparse.Namespace, blocks: int) -> Iterator[Row]:
    """What can be measured here."""
    for switch in options.switches:
        try:
            for workers in options.workers:
                yield from measure(switch, workers, blocks, options.bandwidth)
        except UnavailableError as error:  # noqa: PERF203
            print(error, file=sys.stderr)


def table(results: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and rows for the documentation: a row per density and switch, columns by world size."""
    head = ("switch", "blocks", "density", "ranks", "ms", "times")
    cells = [
        [
            one["switch"],
            one["overlap"],
            f"{one['density']:g}",
            f"{one['workers']} ranks",
            f"{one['median_ms']:,.0f}",
            f"{one['times_ring']:.2f}",
        ]
        for one in results
    ]
    values = {", ms": "ms", ", times the ring's bound": "times"}
    return pivot(head, cells, head[:3], "ranks", values)


def main() -> None:
    from bench.sparse.sparsity_plot import plot  # not in ranks: matplotlib takes a second

    options = read_options(
        __doc__,
        docs="docs/figures.md",
        switches=Option(["embedded", "bmv2"], choices=("embedded", "bmv2")),
        workers=[2, 4, 8],
        bandwidth=Option(5.0, "of each link, in Mbit/s"),
        megabytes=Option(1.5, "of the tensor"),
    )
    blocks = round(options.megabytes * 1e6 / BLOCK_BYTES)
    what = f"{blocks:,} blocks of {BLOCK_BYTES:,} bytes, links of {options.bandwidth:g} Mbit/s"
    results = tell(options, rows(options, blocks), f"{what}, {SLOTS} slots, seed {SEED}")
    if not results:
        sys.exit(CANNOT_RUN)
    tell_table(options, FIGURES, "sparsity", *table(results))
    path = IMAGES / "sparsity.png" if options.docs else PLOT
    title = f"{blocks * BLOCK_BYTES / 1e6:.3g} MB, links of {options.bandwidth:g} Mbit/s"
    plot(results, title, path)
    print(path)


if __name__ == "__main__":
    run(main)
