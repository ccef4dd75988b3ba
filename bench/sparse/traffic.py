# SPDX-License-Identifier: Apache-2.0
"""What a large tensor moves of which each rank has 1 % of the blocks, counted by the switch.

Four worker processes on the embedded switch, whose ports nothing limits: dense for comparison, then
all ranks with the same blocks (aligned), then each with its own (independent). Bytes are those of
whole frames through the port of the rank that has most, as the controller reads them off the switch
after the last frame.

    python -m bench.sparse.traffic [--megabytes 100] [--density 0.01] [--workers 4] [--json FILE]
        [--docs]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce.wire.format import EMPTY_FRAME_BYTES
from p4reduce_lab.choice import choose
from p4reduce_lab.system import CONTROLLER_VARIABLE

from bench.in_docs import put_table
from bench.machine import describe, machine
from bench.ranks import run_ranks
from bench.sparse.tensors import BLOCK_BYTES, OVERLAPS, draw, is_sum, tensor

SEED = 4
REPETITIONS = 3
TIMEOUT = 300.0  # seconds; for each case
LEAVING = 30.0  # seconds


@dataclass(frozen=True)
class Result:
    """One case.

    Attributes:
        seconds: the slowest rank's, median of the repetitions.
        speedup: over dense.
        megabytes_up, megabytes_down: of one all-reduce.
        percent_up, percent_down: of what dense moves.
        repeated: share of the contributions that timers sent again; their bytes are included.
    """

    name: str
    density: float
    union: float
    seconds: float
    speedup: float
    megabytes_up: float
    megabytes_down: float
    percent_up: float
    percent_down: float
    repeated: float


def reduce_all(overlap: str, density: float, blocks: int, report: Path) -> None:
    """What each rank does; rank 0 stays until the others have left, and fetches the counts."""
    seconds = []
    with p4reduce.init(timeout=TIMEOUT) as comm:
        masks = draw(overlap, comm.size, blocks, density, [SEED])
        mine = tensor(masks, comm.rank)
        out = np.empty_like(mine)
        for _ in range(REPETITIONS):
            comm.barrier()
            start = time.perf_counter()
            comm.allreduce(mine, out=out)
            seconds.append(time.perf_counter() - start)
            if not is_sum(out, masks):
                raise SystemExit("the sum is wrong")
        figures = {
            "seconds": seconds,
            "retransmissions": comm.stats.retransmissions,
            "frames": comm.stats.frames_sent,
            "union": float(masks.any(axis=0).mean()),
        }
        if comm.rank == 0:
            figures["ranks"] = counted(comm.job)
    report.write_text(json.dumps(figures))


def counted(job: str) -> list[dict[str, int]]:
    """Return each rank's bytes up and down, once all ranks but this one have left the job."""
    client = ControlClient(os.environ[CONTROLLER_VARIABLE])
    end = time.monotonic() + LEAVING
    try:
        while True:
            request = pb.GetStatisticsRequest(job=job)
            answer = client.call(client.stub.GetStatistics, request, timeout=LEAVING)
            if all(member.state == "left" for member in answer.job.members[1:]):
                # As bytes of all-reduces: without the barriers'.
                barriers = REPETITIONS * EMPTY_FRAME_BYTES
                return [
                    {"up": one.bytes_up - barriers, "down": one.bytes_down - barriers}
                    for one in answer.ranks
                ]
            if time.monotonic() > end:
                raise SystemExit(f"the other ranks have not left after {LEAVING:g} s")
            time.sleep(0.05)
    finally:
        client.close()


def measure(workers: int, blocks: int, density: float) -> list[Result]:
    """All cases."""
    results: list[Result] = []
    for overlap, share in ((OVERLAPS[0], 1.0), *((overlap, density) for overlap in OVERLAPS)):
        arguments = ["--overlap", overlap, "--density", str(share), "--blocks", str(blocks)]
        reports = run_ranks(
            choose("embedded", "local"),
            workers,
            ["-m", "bench.sparse.traffic", *arguments],
            TIMEOUT,
        )
        seconds = float(np.median(np.max([report["seconds"] for report in reports], axis=0)))
        ranks = reports[0]["ranks"]
        up, down = (max(rank[way] for rank in ranks) / REPETITIONS / 1e6 for way in ("up", "down"))
        dense = results[0] if results else None
        results.append(
            Result(
                name="dense" if share == 1 else overlap,
                density=share,
                union=reports[0]["union"],
                seconds=seconds,
                speedup=dense.seconds / seconds if dense else 1.0,
                megabytes_up=up,
                megabytes_down=down,
                percent_up=100 * up / dense.megabytes_up if dense else 100.0,
                percent_down=100 * down / dense.megabytes_down if dense else 100.0,
                repeated=sum(report["retransmissions"] for report in reports)
                / sum(report["frames"] for report in reports),
            )
        )
    return results


def table(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows for the documentation."""
    rows = [
        [
            one.name if one.density == 1 else f"{one.density:.3g}, {one.name}",
            f"{one.union:.4g}",
            f"{one.megabytes_up:.3g} ({one.percent_up:.3g} %)",
            f"{one.megabytes_down:.3g} ({one.percent_down:.3g} %)",
            f"{one.repeated:.1%}",
            f"{one.seconds:.3g} s",
            f"{one.speedup:.3g}",
        ]
        for one in results
    ]
    head = ["blocks", "union", "MB up", "MB down", "repeated by timers", "time", "speedup"]
    return head, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--megabytes", type=float, default=100.0, help="of the tensor")
    parser.add_argument("--density", type=float, default=0.01, help="share of the blocks")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--docs", action="store_true", help="update docs/figures.md")
    parser.add_argument("--overlap", choices=OVERLAPS, help=argparse.SUPPRESS)
    parser.add_argument("--blocks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        reduce_all(options.overlap, options.density, options.blocks, options.report)
        return
    blocks = round(options.megabytes * 1e6 / BLOCK_BYTES)
    host = machine()
    print(describe(host))
    print(f"{options.workers} workers, {blocks:,} blocks of {BLOCK_BYTES:,} bytes, seed {SEED}")
    print(
        f"{'':12}{'density':>8}{'union':>8}{'seconds':>9}{'speedup':>9}{'MB up':>9}{'MB down':>9}"
        f"{'% up':>8}{'% down':>8}{'again':>7}"
    )
    results = measure(options.workers, blocks, options.density)
    for one in results:
        print(
            f"{one.name:12}{one.density:8g}{one.union:8.4f}{one.seconds:9.3f}{one.speedup:9.1f}"
            f"{one.megabytes_up:9.3f}{one.megabytes_down:9.3f}{one.percent_up:8.2f}"
            f"{one.percent_down:8.2f}{one.repeated:7.1%}"
        )
    if options.docs:
        put_table("sparse-bytes", *table(results))
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
