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

import importlib.util
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import p4reduce
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE

from bench.measure import in_turns, median_of, timed
from bench.pages import DOCS
from bench.program import Option, read_options, run, tell_table
from bench.pytorch.over_links import join
from bench.ranks import TIMEOUT, run_ranks

DENSITIES = (0.0001, 0.001, 0.01, 0.1)
SEED = 32
HEAD = ("share", "fill", "formula", "bytes", "by blocks", "ms", "dense, ms", "Gloo sparse, ms",
        "Gloo dense, ms")  # fmt: skip
WAYS = ("union", "dense", "gloo sparse", "gloo dense")


def by_gloo(mine: p4reduce.SparseElements, full: Any) -> dict[str, Callable[[], object]]:
    """The same sums by torch.distributed; the sparse one is coalesced in the end."""
    import torch
    import torch.distributed as dist

    def sparse() -> None:
        indices, values = torch.from_numpy(mine.indices)[None], torch.from_numpy(mine.values)
        tensor = torch.sparse_coo_tensor(indices, values, mine.shape, check_invariants=False)
        dist.all_reduce(tensor)
        tensor.coalesce()

    tensor = torch.from_numpy(full.copy())
    return {"gloo sparse": sparse, "gloo dense": lambda: dist.all_reduce(tensor)}


def reduce_all(size: int, repetitions: int, interface: str, store: str) -> list[dict[str, Any]]:
    """What each rank does: returns its times and counts for each density."""
    figures: list[dict[str, Any]] = []
    torch = importlib.util.find_spec("torch") is not None
    with p4reduce.init(timeout=TIMEOUT) as comm:
        if torch:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            join("gloo", store)
        for density in DENSITIES:
            rng = np.random.default_rng([SEED, comm.rank, round(density * 1e6)])
            count = round(size * density)
            places = np.sort(rng.choice(size, count, replace=False))
            values = rng.standard_normal(count).astype(np.float32)
            mine = p4reduce.SparseElements(places, values, size)
            full = rng.standard_normal(size).astype(np.float32)
            fill = check(comm, mine)
            calls: dict[str, Callable[[], object]] = {
                "union": partial(comm.allreduce_sparse, mine),
                "blocks": partial(comm.allreduce_sparse, mine, agree=False),
                "dense": partial(comm.allreduce, full),
                **(by_gloo(mine, full) if torch else {}),
            }
            ways = {way: partial(_counted, comm, call) for way, call in calls.items()}
            found = in_turns(ways, repetitions)
            times = {way: [seconds for seconds, _ in each] for way, each in found.items()}
            moved = {way: sum(octets for _, octets in each) for way, each in found.items()}
            figures.append({"fill": fill, "times": times, "moved": moved})
    return figures


def _counted(comm: p4reduce.Communicator, call: Callable[[], object]) -> tuple[float, int]:
    """Return a call's seconds, and its bytes both ways."""
    comm.barrier()
    before = comm.stats
    seconds = timed(call)
    after = comm.stats
    up, down = after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received
    return seconds, up + down


def check(comm: p4reduce.Communicator, mine: p4reduce.SparseElements) -> float:
    """Compare with the dense sums, of integers bit for bit; return the union's share."""
    integers = np.rint(mine.values * 1000).astype(np.int32)
    whole = p4reduce.SparseElements(mine.indices, integers, mine.shape)
    wanted = comm.allreduce(whole.to_dense())
    if comm.allreduce_sparse(whole, dense=True).tobytes() != wanted.tobytes():
        raise SystemExit("the sum of integers is wrong")
    total = comm.allreduce_sparse(mine, dense=True)
    off = np.abs(total - comm.allreduce(mine.to_dense())).max()
    largest = float(comm.allgather(np.abs(mine.values).max(initial=0.0)).max())
    if off > 2 * p4reduce.error_bound(largest, comm.size) + 1e-6 * np.abs(total).max():
        raise SystemExit(f"the sum of floats is off by {off}")
    return float(np.count_nonzero(total) / total.size)


def cells(density: float, reports: tuple[Any, ...]) -> list[str]:
    """One line of the table."""
    first = reports[0]
    most = {way: max(one["moved"][way] for one in reports) for way in first["moved"]}
    return [
        f"{density:.2%}",
        f"{first['fill']:.3%}",
        f"{1 - (1 - density) ** len(reports):.3%}",
        f"{most['union'] / most['dense']:.1%}",
        f"{most['blocks'] / most['dense']:.1%}",
        *(
            f"{median_of(reports, 'times', way) * 1e3:,.0f}" if way in first["times"] else "–"
            for way in WAYS
        ),
    ]


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs="docs/collectives.md",
        ranks=8,
        elements=Option(1 << 20, "of the array"),
        bandwidth=Option(None, "of each link, in Mbit/s; none: no links", float),
        repetitions=7,
    )
    shaped = options.bandwidth is not None
    with tempfile.TemporaryDirectory() as directory:
        reports = run_ranks(
            reduce_all,
            options.ranks,
            bandwidth=options.bandwidth,
            size=options.elements,
            repetitions=options.repetitions,
            interface=HOST_INTERFACE if shaped else "lo",
            store=f"{directory}/gloo",
        )
    links = f"links of {options.bandwidth:g} Mbit/s" if shaped else "no links"
    what = f"{options.elements:,} float32, {options.ranks} ranks, {links}, seed {SEED}"
    table = list(map(cells, DENSITIES, zip(*reports, strict=True)))
    name = "elements, links" if shaped else "elements"
    tell_table(options, DOCS / "collectives.md", name, HEAD, table, what)


if __name__ == "__main__":
    run(main)
