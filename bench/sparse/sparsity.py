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
share of the blocks that any rank has, kilobytes are of frames through a rank's link, on average,
with repetitions, and `repeated` is the share of the contributions that timers sent again.

    python -m bench.sparse.sparsity [--quick] [--switches embedded bmv2] [--workers 2 4 8]
        [--bandwidth 5] [--megabytes 1.5] [--json FILE] [--plot FILE] [--docs]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce_lab.choice import LabChoice, choose
from p4reduce_lab.compare.rank import interface_bytes
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE, SUBNET

from bench.measure import slowest, timed
from bench.pages import FIGURES, IMAGES, pivot
from bench.program import CANNOT_RUN, Option, Row, read_options, run, tell, tell_table
from bench.ranks import run_ranks
from bench.sparse.tcp_ring import Ring
from bench.sparse.tensors import BLOCK_BYTES, OVERLAPS, Masks, draw, is_sum, tensor

Counts = npt.NDArray[np.int64]

DENSITIES = (1.0, 0.4, 0.1, 0.01)
RING = "TCP ring"  # in the place of how blocks overlap
SLOTS = 32  # what BMv2's queues hold; on slow links more would only wait in the links' queues
SEED = 4
SECONDS = 1.5  # of repetitions at each point, by the model
REPETITIONS = (3, 12)  # at least, at most
TIMEOUT = 300.0  # seconds; for a switch and a number of workers
PLOT = Path(__file__).resolve().parents[2] / "build" / "bench" / "sparsity.png"


@dataclass(frozen=True)
class Point:
    """What is measured together: repetitions, each with other blocks."""

    density: float
    overlap: str
    repetitions: int

    @property
    def key(self) -> str:
        return f"{self.overlap} {self.density:g}"

    @property
    def is_ring(self) -> bool:
        return self.overlap == RING


def union_density(overlap: str, density: float, workers: int) -> float:
    """Expected density of the union of the ranks' blocks."""
    return 1 - (1 - density) ** workers if overlap == "independent" else density


def points(workers: int, dense_seconds: float) -> Iterator[Point]:
    """What is measured for a number of workers; `dense_seconds` is S / B."""
    for density in DENSITIES:
        for overlap in OVERLAPS if density < 1 else OVERLAPS[:1]:
            expected = union_density(overlap, density, workers) * dense_seconds
            least, most = REPETITIONS
            yield Point(density, overlap, min(most, max(least, round(SECONDS / expected))))
    yield Point(1.0, RING, REPETITIONS[0])


def masks_of(point: Point, workers: int, blocks: int, repetition: int) -> Masks:
    """The blocks of all ranks; every process finds the same."""
    overlap = "aligned" if point.is_ring else point.overlap
    seed = [SEED, workers, round(1e6 * point.density), OVERLAPS.index(overlap), repetition]
    return draw(overlap, workers, blocks, point.density, seed)


def reduce_all(blocks: int, bandwidth: float) -> dict[str, dict[str, Any]]:
    """What each rank does: returns its times and counts of each point."""
    figures: dict[str, dict[str, Any]] = {}
    with p4reduce.init(slots=SLOTS, timeout=TIMEOUT) as comm:
        hosts = [f"{SUBNET}.{rank + 1}" for rank in range(comm.size)]
        with Ring(comm.rank, hosts, comm.barrier) as ring:
            for point in points(comm.size, seconds_dense(blocks, bandwidth)):
                figures[point.key] = repeat(point, comm, ring, blocks)
    return figures


def repeat(point: Point, comm: p4reduce.Communicator, ring: Ring, blocks: int) -> dict[str, Any]:
    """This rank's seconds of each repetition, and what its link moved in all of them."""
    seconds, counts = [], np.zeros(4, np.int64)
    out = np.empty(blocks * BLOCK_BYTES // 4, np.float32)
    for repetition in range(point.repetitions):
        masks = masks_of(point, comm.size, blocks, repetition)
        mine = tensor(masks, comm.rank)
        out[:] = mine
        comm.barrier()
        before = counted(comm, point)
        call = partial(comm.allreduce, mine, out=out)
        seconds.append(timed(partial(ring.allreduce, out) if point.is_ring else call))
        if point.is_ring:
            comm.barrier()  # until what lies in this host's queue has gone out
        counts += counted(comm, point) - before
        if not is_sum(out, masks):
            raise SystemExit(f"{point}: the sum is wrong")
    return {"seconds": seconds, "counts": counts.tolist()}


def counted(comm: p4reduce.Communicator, point: Point) -> Counts:
    """Bytes up and down so far, contributions, and how many of those were repetitions."""
    if point.is_ring:
        return np.array([*interface_bytes(HOST_INTERFACE), 0, 0], np.int64)
    stats = comm.stats
    return np.array(
        [stats.bytes_sent, stats.bytes_received, stats.frames_sent, stats.retransmissions],
        np.int64,
    )


def seconds_dense(blocks: int, bandwidth: float) -> float:
    """S / B."""
    return blocks * BLOCK_BYTES * 8 / bandwidth / 1e6


def measure(choice: LabChoice, workers: int, blocks: int, bandwidth: float) -> Iterator[Row]:
    """All points of one switch and number of workers, in a network of their own."""
    given: dict[str, Any] = {"blocks": blocks, "bandwidth": bandwidth}
    reports = run_ranks(choice, workers, reduce_all, TIMEOUT, **given)
    dense = seconds_dense(blocks, bandwidth)
    ring = 2 * (workers - 1) / workers * dense
    for point in points(workers, dense):
        figures = [report[point.key] for report in reports]
        seconds = slowest(figures, "seconds")
        up, down, frames, repeated = np.mean([one["counts"] for one in figures], axis=0)
        median = float(np.median(seconds))
        union = union_density(point.overlap, point.density, workers)
        model = ring if point.is_ring else union * dense
        yield {
            "switch": choice.switch,
            "workers": workers,
            "overlap": point.overlap,
            "density": point.density,
            "union": union,
            "repetitions": point.repetitions,
            "median_ms": median * 1e3,
            "fastest_ms": float(seconds.min()) * 1e3,
            "slowest_ms": float(seconds.max()) * 1e3,
            "model_ms": model * 1e3,
            "over_model": median / model,
            "ring_bound_ms": ring * 1e3,
            "times_ring": ring / median,
            "kilobytes_up": float(up) / point.repetitions / 1e3,
            "kilobytes_down": float(down) / point.repetitions / 1e3,
            "repeated": float(repeated / frames) if frames else 0.0,
        }


def rows(options: argparse.Namespace, blocks: int) -> Iterator[Row]:
    """What can be measured here."""
    for switch in options.switches:
        try:
            choice = choose(switch, "mininet", bandwidth=options.bandwidth)
        except UnavailableError as error:
            print(error, file=sys.stderr)
            continue
        for workers in options.workers:
            yield from measure(choice, workers, blocks, options.bandwidth)


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
    options = read_options(
        __doc__,
        docs="docs/figures.md",
        switches=Option(["embedded", "bmv2"], choices=("embedded", "bmv2")),
        workers=[2, 4, 8],
        bandwidth=Option(5.0, "of each link, in Mbit/s"),
        megabytes=Option(1.5, "of the tensor"),
        quick=Option(False, "4 workers, embedded switch, 0.5 MB"),
        plot=Option(PLOT, "where the picture goes", Path),
    )
    if options.quick:
        options.switches, options.workers, options.megabytes = ["embedded"], [4], 0.5
    blocks = round(options.megabytes * 1e6 / BLOCK_BYTES)
    what = f"{blocks:,} blocks of {BLOCK_BYTES:,} bytes, links of {options.bandwidth:g} Mbit/s"
    results = tell(options, rows(options, blocks), f"{what}, {SLOTS} slots, seed {SEED}")
    if not results:
        sys.exit(CANNOT_RUN)
    tell_table(options, FIGURES, "sparsity", *table(results))
    path = IMAGES / "sparsity.png" if options.docs else options.plot
    title = f"{blocks * BLOCK_BYTES / 1e6:.3g} MB, links of {options.bandwidth:g} Mbit/s"
    try:
        # An extra of the package: the figures are there without it.
        from bench.sparse.sparsity_plot import plot
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)
    else:
        plot(results, title, path)
        print(path)


if __name__ == "__main__":
    run(main)
