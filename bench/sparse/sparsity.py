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

Neither counts headers: here they are 78 bytes a frame.

    python -m bench.sparse.sparsity [--quick] [--switches embedded bmv2] [--workers 2 4 8]
        [--bandwidth 5] [--megabytes 1.5] [--json FILE] [--plot FILE] [--docs]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce_lab.choice import LabChoice, choose
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE, SUBNET

from bench.in_docs import IMAGES, put_table
from bench.machine import describe, machine
from bench.pages import pivot
from bench.ranks import run_ranks
from bench.sparse.sparsity_result import Result
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
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
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


def reduce_all(blocks: int, bandwidth: float, report: Path) -> None:
    """What each rank does: leaves its times and counts of each point."""
    figures: dict[str, dict[str, Any]] = {}
    with p4reduce.init(slots=SLOTS, timeout=TIMEOUT) as comm:
        hosts = [f"{SUBNET}.{rank + 1}" for rank in range(comm.size)]
        with Ring(comm.rank, hosts, comm.barrier) as ring:
            for point in points(comm.size, seconds_dense(blocks, bandwidth)):
                figures[point.key] = repeat(point, comm, ring, blocks)
    report.write_text(json.dumps(figures))


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
        start = time.perf_counter()
        if point.is_ring:
            ring.allreduce(out)
        else:
            comm.allreduce(mine, out=out)
        seconds.append(time.perf_counter() - start)
        if point.is_ring:
            comm.barrier()  # until what lies in this host's queue has gone out
        counts += counted(comm, point) - before
        if not is_sum(out, masks):
            raise SystemExit(f"{point}: the sum is wrong")
    return {"seconds": seconds, "counts": counts.tolist()}


def counted(comm: p4reduce.Communicator, point: Point) -> Counts:
    """Bytes up and down so far, contributions, and how many of those were repetitions."""
    if point.is_ring:
        return np.array([*interface_bytes(), 0, 0], np.int64)
    stats = comm.stats
    return np.array(
        [stats.bytes_sent, stats.bytes_received, stats.frames_sent, stats.retransmissions],
        np.int64,
    )


def interface_bytes() -> tuple[int, int]:
    """Bytes that this host has sent and received, by the kernel's count."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == HOST_INTERFACE:
            columns = figures.split()
            return int(columns[8]), int(columns[0])
    raise SystemExit(f"there is no {HOST_INTERFACE}")


def seconds_dense(blocks: int, bandwidth: float) -> float:
    """S / B."""
    return blocks * BLOCK_BYTES * 8 / bandwidth / 1e6


def possible(switch: str, bandwidth: float) -> LabChoice | None:
    """The switch in a Mininet network, or None, having said why it is not available here."""
    try:
        return choose(switch, "mininet", bandwidth=bandwidth)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return None


def measure(choice: LabChoice, workers: int, blocks: int, bandwidth: float) -> list[Result]:
    """All points of one switch and number of workers, in a network of their own."""
    arguments = ["--blocks", str(blocks), "--bandwidth", str(bandwidth)]
    reports = run_ranks(choice, workers, ["-m", "bench.sparse.sparsity", *arguments], TIMEOUT)
    dense = seconds_dense(blocks, bandwidth)
    ring = 2 * (workers - 1) / workers * dense
    results = []
    for point in points(workers, dense):
        figures = [report[point.key] for report in reports]
        seconds = np.max([one["seconds"] for one in figures], axis=0)
        up, down, frames, repeated = np.mean([one["counts"] for one in figures], axis=0)
        median = float(np.median(seconds))
        union = union_density(point.overlap, point.density, workers)
        model = ring if point.is_ring else union * dense
        results.append(
            Result(
                switch=choice.switch,
                workers=workers,
                overlap=point.overlap,
                density=point.density,
                union=union,
                repetitions=point.repetitions,
                median_ms=median * 1e3,
                fastest_ms=float(seconds.min()) * 1e3,
                slowest_ms=float(seconds.max()) * 1e3,
                model_ms=model * 1e3,
                over_model=median / model,
                ring_bound_ms=ring * 1e3,
                times_ring=ring / median,
                kilobytes_up=float(up) / point.repetitions / 1e3,
                kilobytes_down=float(down) / point.repetitions / 1e3,
                repeated=float(repeated / frames) if frames else 0.0,
            )
        )
    return results


def table(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows for the documentation: a row per density and switch, columns by world size."""
    cells = [
        [
            one.switch,
            one.overlap,
            f"{one.density:g}",
            f"{one.workers} ranks",
            f"{one.median_ms:,.0f}",
            f"{one.times_ring:.2f}",
        ]
        for one in results
    ]
    head = ("switch", "blocks", "density", "ranks", "ms", "times")
    values = {", ms": "ms", ", times the ring's bound": "times"}
    return pivot(head, cells, head[:3], "ranks", values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--switches", nargs="+", choices=["embedded", "bmv2"], default=["embedded", "bmv2"]
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bandwidth", type=float, default=5.0, help="of each link, in Mbit/s")
    parser.add_argument("--megabytes", type=float, default=1.5, help="of the tensor")
    parser.add_argument("--quick", action="store_true", help="4 workers, embedded switch, 0.5 MB")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the picture goes")
    parser.add_argument("--docs", action="store_true", help="update docs/figures.md")
    parser.add_argument("--blocks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        reduce_all(options.blocks, options.bandwidth, options.report)
        return
    if options.quick:
        options.switches, options.workers, options.megabytes = ["embedded"], [4], 0.5
    blocks = round(options.megabytes * 1e6 / BLOCK_BYTES)
    host = machine()
    print(describe(host))
    print(
        f"{blocks:,} blocks of {BLOCK_BYTES:,} bytes, links of {options.bandwidth:g} Mbit/s, "
        f"{SLOTS} slots, seed {SEED}"
    )
    print(
        f"{'switch':10}{'workers':>8}  {'overlap':12}{'density':>8}"
        f"{'median ms':>11}{'min':>8}{'max':>8}{'model':>8}{'/ model':>8}"
        f"{'x ring':>8}{'kB up':>9}{'kB down':>9}{'again':>7}"
    )
    choices = [possible(switch, options.bandwidth) for switch in options.switches]
    results = []
    for choice, workers in itertools.product(filter(None, choices), options.workers):
        for one in measure(choice, workers, blocks, options.bandwidth):
            results.append(one)
            print(
                f"{one.switch:10}{one.workers:8}  {one.overlap:12}{one.density:8g}"
                f"{one.median_ms:11.1f}{one.fastest_ms:8.1f}{one.slowest_ms:8.1f}"
                f"{one.model_ms:8.1f}{one.over_model:8.2f}{one.times_ring:8.2f}"
                f"{one.kilobytes_up:9.1f}{one.kilobytes_down:9.1f}{one.repeated:7.1%}",
                flush=True,
            )
    if not results:
        sys.exit(CANNOT_RUN)
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.docs:
        options.plot = IMAGES / "sparsity.png"
        put_table("sparsity", *table(results))
    title = f"{blocks * BLOCK_BYTES / 1e6:.3g} MB, links of {options.bandwidth:g} Mbit/s"
    try:
        # An extra of the package: the figures are there without it.
        from bench.sparse.sparsity_plot import plot
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)
    else:
        plot(results, title, options.plot)
        print(options.plot)


if __name__ == "__main__":
    main()
