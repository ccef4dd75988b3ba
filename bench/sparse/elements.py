# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse elements: bytes, fill and time, beside dense sums and Gloo's sparse all-reduce.

Each rank has the same share of the elements of a float32 array, at random places of its own. All
ways run in turns in the same processes. *Bytes* are those of whole frames, sent and received by
the rank that has most, over those of the sum of an array without zeros. *Fill* is the union's
share of the array, beside 1 - (1 - d)^P (Renggli et al., SC 2019). Times are medians of the
slowest rank.

    python -m bench.sparse.elements [--bandwidth 100] [--ranks 8] [--elements 1048576] [--docs]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce_lab.choice import choose
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE

from bench.in_docs import DOCS, put_table
from bench.machine import describe, machine
from bench.ranks import run_ranks

DENSITIES = (0.0001, 0.001, 0.01, 0.1)
TIMEOUT = 300.0
SEED = 32
HEAD = (
    "share",
    "fill",
    "formula",
    "bytes",
    "by blocks",
    "ms",
    "dense, ms",
    "Gloo sparse, ms",
    "Gloo dense, ms",
)


class Gloo:
    """All-reduces of torch.distributed in the same processes; nothing where torch is missing."""

    def __init__(self, rank: int, ranks: int, store: Path, interface: str) -> None:
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = interface
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=TIMEOUT),
        )
        self._torch, self._dist = torch, dist

    def sparse(self, array: p4reduce.SparseElements) -> Any:
        """Sum it as a sparse tensor, coalesced in the end."""
        tensor = self._torch.sparse_coo_tensor(
            self._torch.from_numpy(array.indices)[None],
            self._torch.from_numpy(array.values),
            array.shape,
            check_invariants=False,
        )
        self._dist.all_reduce(tensor)
        return tensor.coalesce()

    def dense(self, array: Any) -> Any:
        """Sum it in place."""
        self._dist.all_reduce(self._torch.from_numpy(array))


def reduce_all(size: int, repetitions: int, interface: str, report: Path) -> None:
    """What each rank does: leaves its times and counts for each density."""
    figures: list[dict[str, Any]] = []
    with p4reduce.init(timeout=TIMEOUT) as comm:
        gloo = None
        if importlib.util.find_spec("torch"):
            gloo = Gloo(comm.rank, comm.size, report.parent / "gloo", interface)
        for density in DENSITIES:
            rng = np.random.default_rng([SEED, comm.rank, round(density * 1e6)])
            count = round(size * density)
            places = np.sort(rng.choice(size, count, replace=False))
            mine = p4reduce.SparseElements(
                places, rng.standard_normal(count).astype(np.float32), size
            )
            full = rng.standard_normal(size).astype(np.float32)
            fill = check(comm, mine)
            ways: dict[str, Callable[[], Any]] = {
                "union": partial(comm.allreduce_sparse, mine),
                "blocks": partial(comm.allreduce_sparse, mine, agree=False),
                "dense": partial(comm.allreduce, full),
            }
            if gloo is not None:
                ways["gloo sparse"] = partial(gloo.sparse, mine)
                ways["gloo dense"] = partial(gloo.dense, full.copy())
            times: dict[str, list[float]] = {way: [] for way in ways}
            moved = dict.fromkeys(ways, 0)
            for _ in range(repetitions):
                for way, call in ways.items():
                    comm.barrier()
                    before = comm.stats
                    start = time.perf_counter()
                    call()
                    times[way].append(time.perf_counter() - start)
                    after = comm.stats
                    moved[way] += after.bytes_sent - before.bytes_sent
                    moved[way] += after.bytes_received - before.bytes_received
            figures.append({"fill": fill, "times": times, "moved": moved})
    report.write_text(json.dumps(figures))


def check(comm: p4reduce.Communicator, mine: p4reduce.SparseElements) -> float:
    """Compare with the dense sums, of integers bit for bit; return the union's share."""
    whole = p4reduce.SparseElements(
        mine.indices, np.rint(mine.values * 1000).astype(np.int32), mine.shape
    )
    wanted = comm.allreduce(whole.to_dense())
    if comm.allreduce_sparse(whole, dense=True).tobytes() != wanted.tobytes():
        raise SystemExit("the sum of integers is wrong")
    total = comm.allreduce_sparse(mine, dense=True)
    off = np.abs(total - comm.allreduce(mine.to_dense())).max()
    largest = float(comm.allgather(np.abs(mine.values).max(initial=0.0)).max())
    if off > 2 * p4reduce.error_bound(largest, comm.size) + 1e-6 * np.abs(total).max():
        raise SystemExit(f"the sum of floats is off by {off}")
    return float(np.count_nonzero(total) / total.size)


def row(density: float, reports: list[dict[str, Any]]) -> list[str]:
    """One line of the table."""
    first = reports[0]
    most = {way: max(one["moved"][way] for one in reports) for way in first["moved"]}

    def milliseconds(way: str) -> str:
        if way not in first["times"]:
            return "–"
        slowest = np.max([one["times"][way] for one in reports], axis=0)
        return f"{float(np.median(slowest)) * 1e3:,.0f}"

    return [
        f"{density:.2%}",
        f"{first['fill']:.3%}",
        f"{1 - (1 - density) ** len(reports):.3%}",
        f"{most['union'] / most['dense']:.1%}",
        f"{most['blocks'] / most['dense']:.1%}",
        *map(milliseconds, ("union", "dense", "gloo sparse", "gloo dense")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the array")
    parser.add_argument("--bandwidth", type=float, help="of each link, in Mbit/s; none: no links")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--docs", action="store_true", help="update docs/collectives.md")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shaped = options.bandwidth is not None
    if options.report is not None:
        interface = HOST_INTERFACE if shaped else "lo"
        reduce_all(options.elements, options.repetitions, interface, options.report)
        return
    network = "mininet" if shaped else "local"
    script = ["-m", "bench.sparse.elements", "--elements", str(options.elements)]
    script += ["--repetitions", str(options.repetitions)]
    if shaped:
        script += ["--bandwidth", str(options.bandwidth)]
    choice = choose("embedded", network, bandwidth=options.bandwidth)
    reports = run_ranks(choice, options.ranks, script, TIMEOUT)
    print(describe(machine()))
    links = f"links of {options.bandwidth:g} Mbit/s" if shaped else "no links"
    print(f"{options.elements:,} float32, {options.ranks} ranks, {links}, seed {SEED}\n")
    rows = [row(density, [one[n] for one in reports]) for n, density in enumerate(DENSITIES)]
    for line in (HEAD, *rows):
        print("".join(f"{cell:>17}" for cell in line))
    if options.docs:
        name = "elements, links" if shaped else "elements"
        put_table(name, HEAD, rows, DOCS / "collectives.md")


if __name__ == "__main__":
    main()
