# SPDX-License-Identifier: Apache-2.0
"""What a large tensor moves of which each rank has 1 % of the blocks, counted by the switch.

Four worker processes on the embedded switch, whose ports nothing limits: dense for comparison, then
all ranks with the same blocks (aligned), then each with its own (independent). Bytes are those of
whole frames through the port of the rank that has most, as the controller reads them off the switch
after the last frame. Seconds are the slowest rank's, the median of the repetitions; `repeated` is
the share of the contributions that timers sent again, whose bytes are included.

    python -m bench.sparse.traffic [--megabytes 100] [--density 0.01] [--workers 4] [--json FILE]
        [--docs]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import p4reduce
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce.wire.format import EMPTY_FRAME_BYTES
from p4reduce_lab.planning.framing import OVERLAPS

from bench.measure import median_of, timed
from bench.pages import FIGURES
from bench.program import Option, Row, read_options, run, tell, tell_table
from bench.ranks import TIMEOUT, run_ranks
from bench.sparse.tensors import BLOCK_BYTES, draw, is_sum, tensor

SEED = 4
REPETITIONS = 3
LEAVING = 30.0  # seconds
HEAD = ("blocks", "union", "MB up", "MB down", "repeated by timers", "time", "speedup")


def reduce_all(overlap: str, density: float, blocks: int) -> dict[str, Any]:
    """What each rank does; rank 0 stays until the others have left, and fetches the counts."""
    seconds = []
    with p4reduce.init(timeout=TIMEOUT) as comm:
        masks = draw(overlap, comm.size, blocks, density, [SEED])
        mine = tensor(masks, comm.rank)
        out = np.empty_like(mine)
        for _ in range(REPETITIONS):
            seconds.append(timed(lambda: comm.allreduce(mine, out=out), comm.barrier))
            if not is_sum(out, masks):
                raise SystemExit("the sum is wrong")
        return {
            "seconds": seconds,
            "retransmissions": comm.stats.retransmissions,
            "frames": comm.stats.frames_sent,
            "union": float(masks.any(axis=0).mean()),
            "most": most_bytes(comm.job) if comm.rank == 0 else None,
        }


def most_bytes(job: str) -> list[float]:
    """Return the most megabytes of a rank per all-reduce, up and down, once others have left."""
    end = time.monotonic() + LEAVING
    with ControlClient() as client:
        while True:
            request = pb.GetStatisticsRequest(job=job)
            answer = client.call(client.stub.GetStatistics, request, timeout=LEAVING)
            if all(member.state == "left" for member in answer.job.members[1:]):
                ranks = np.array([(one.bytes_up, one.bytes_down) for one in answer.ranks])
                # Without the barriers'.
                each: list[float] = (ranks.max(axis=0) / REPETITIONS - EMPTY_FRAME_BYTES).tolist()
                return [octets / 1e6 for octets in each]
            if time.monotonic() > end:
                raise SystemExit(f"the other ranks have not left after {LEAVING:g} s")
            time.sleep(0.05)


def measure(workers: int, blocks: int, density: float) -> Iterator[Row]:
    """All cases, dense first: percentages and speedups are of that."""
    dense: Row | None = None
    for overlap, share in ((OVERLAPS[0], 1.0), *((overlap, density) for overlap in OVERLAPS)):
        given: dict[str, Any] = {"overlap": overlap, "density": share, "blocks": blocks}
        reports = run_ranks(reduce_all, workers, **given)
        row: dict[str, Any] = {
            "name": "dense" if share == 1 else overlap,
            "density": share,
            "union": reports[0]["union"],
            "seconds": median_of(reports, "seconds"),
        }
        row["megabytes_up"], row["megabytes_down"] = reports[0]["most"]
        dense = dense or row
        row["speedup"] = dense["seconds"] / row["seconds"]
        for way in ("up", "down"):
            row[f"percent_{way}"] = 100 * row[f"megabytes_{way}"] / dense[f"megabytes_{way}"]
        again, frames = (
            sum(one[name] for one in reports) for name in ("retransmissions", "frames")
        )
        yield {**row, "repeated": again / frames}


def cells(one: Row) -> list[str]:
    """A line of the page's table."""
    return [
        one["name"] if one["density"] == 1 else f"{one['density']:.3g}, {one['name']}",
        f"{one['union']:.4g}",
        f"{one['megabytes_up']:.3g} ({one['percent_up']:.3g} %)",
        f"{one['megabytes_down']:.3g} ({one['percent_down']:.3g} %)",
        f"{one['repeated']:.1%}",
        f"{one['seconds']:.3g} s",
        f"{one['speedup']:.3g}",
    ]


def main() -> None:
    options = read_options(
        __doc__,
        docs="docs/figures.md",
        megabytes=Option(100.0, "of the tensor"),
        density=Option(0.01, "share of the blocks"),
        workers=4,
    )
    blocks = round(options.megabytes * 1e6 / BLOCK_BYTES)
    rows = tell(
        options,
        measure(options.workers, blocks, options.density),
        f"{options.workers} workers, {blocks:,} blocks of {BLOCK_BYTES:,} bytes, seed {SEED}",
    )
    tell_table(options, FIGURES, "sparse-bytes", HEAD, list(map(cells, rows)))


if __name__ == "__main__":
    run(main)
