# SPDX-License-Identifier: Apache-2.0
"""Bytes and time on the uplinks of a tree: top-k in two levels beside flat top-k.

Ranks have independent normal gradients. A call's *uplink bytes* are those of all frames that the
switches count on the links between them, up at the root and down at the leaves. Times are medians
of the slowest rank, in turns.

    python -m bench.sparse.uplinks [--uplinks 10 100] [--tree 2x4] [--elements 1048576] [--docs]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import p4reduce
from p4reduce.compression import CompressedAllreduce, HierarchicalTopK, TopK
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_lab.topology import LabTopology

from bench.measure import in_turns, median_of, timed
from bench.pages import DOCS
from bench.program import Option, read_options, run, some, tell_table
from bench.ranks import TIMEOUT, run_ranks

SEED = 4
HEAD = ("uplinks", "gradients by", "uplink bytes, MB", "of flat top-k", "ms")
BASE, BLOCKS = "flat top-k of elements", "flat top-k of blocks"


def uplink_bytes(control: ControlClient) -> int:
    """Return what all uplinks have carried for jobs that still run."""
    switches = control.call(control.stub.ListSwitches, pb.ListSwitchesRequest()).switches
    total = 0
    for switch in switches:
        # The root counts what leaves send to it, and a leaf what comes down from its parent.
        name = "answered" if switch.HasField("uplink") else "contributed"
        request = pb.GetCountersRequest(switch=switch.name, name=name)
        counters = control.call(control.stub.GetCounters, request)
        total += sum(count.bytes for count in counters.counts)
    return total


def reduce_all(elements: int, density: float, repetitions: int) -> dict[str, Any]:
    """What each rank does: returns its times, and rank 0 the bytes of each way."""
    with p4reduce.init(timeout=TIMEOUT) as comm, ControlClient() as control:
        rng = np.random.default_rng([SEED, comm.rank])
        gradient = rng.standard_normal(elements).astype(np.float32)
        count = round(elements * density)

        def flat() -> Any:
            largest = np.argpartition(np.abs(gradient), -count)[-count:]
            chosen = p4reduce.SparseElements(largest, gradient[largest], elements)
            return comm.allreduce_sparse(chosen, dense=True)

        flat_blocks = CompressedAllreduce(comm, TopK(world_size=comm.size, density=density))
        two = HierarchicalTopK(comm, density)
        narrow = HierarchicalTopK(comm, density, precision="int8", seed=SEED)
        blocks = HierarchicalTopK(comm, density, blocks=True)
        calls: dict[str, Callable[[], Any]] = {
            "all": lambda: comm.allreduce(gradient),
            BASE: flat,
            "two levels, elements": lambda: two.sum(gradient, "two"),
            "two levels, elements, int8 across": lambda: narrow.sum(gradient, "narrow"),
            BLOCKS: lambda: flat_blocks.sum(gradient, "blocks"),
            "two levels, blocks": lambda: blocks.sum(gradient, "two blocks"),
        }

        def counted(call: Callable[[], Any]) -> tuple[float, int]:
            for reducer in (two, narrow, blocks):
                reducer.reset()
            flat_blocks.compressor.reset()
            comm.barrier()
            before = uplink_bytes(control) if comm.rank == 0 else 0
            seconds = timed(call, comm.barrier)
            comm.barrier()
            moved = uplink_bytes(control) - before if comm.rank == 0 else 0
            comm.barrier()
            return seconds, moved

        found = in_turns({way: partial(counted, call) for way, call in calls.items()}, repetitions)
        for reducer in (two, narrow, blocks):
            reducer.close()
    return {
        "times": {way: [seconds for seconds, _ in each] for way, each in found.items()},
        "moved": {way: [octets for _, octets in each] for way, each in found.items()},
    }


def cells(rate: float, reports: list[dict[str, Any]]) -> list[list[str]]:
    """The lines of the table."""
    moved = {way: float(np.median(some)) for way, some in reports[0]["moved"].items()}
    shown = []
    for way, total in moved.items():
        base = moved[BLOCKS if "blocks" in way else BASE]
        milliseconds = f"{median_of(reports, 'times', way) * 1e3:,.0f}"
        parts = [f"{total / 1e6:.3f}", f"{total / base:.2f}", milliseconds]
        shown.append([f"{rate:g} Mbit/s", way, *parts])
    return shown


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs="docs/experiments.md",
        tree=Option(LabTopology.parse("2x4"), kind=LabTopology.parse),
        uplinks=Option([10.0, 100.0], "Mbit/s"),
        elements=Option(1 << 20, "of the gradient"),
        density=0.01,
        repetitions=3,
    )
    tree: LabTopology = options.tree
    given = some(options, "elements", "density", "repetitions")
    table: list[list[str]] = []
    for rate in options.uplinks:
        reports = run_ranks(reduce_all, tree.ranks, switches=tree, uplinks=rate, **given)
        table += cells(rate, reports)
    what = f"{options.elements:,} float32, {tree.text}, {options.density:.1%}, seed {SEED}"
    tell_table(options, DOCS / "experiments.md", "uplinks", HEAD, table, what)


if __name__ == "__main__":
    run(main)
