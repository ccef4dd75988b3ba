# SPDX-License-Identifier: Apache-2.0
"""Bytes and time on the uplinks of a tree: top-k in two levels beside flat top-k.

Ranks have independent normal gradients. A call's *uplink bytes* are those of all frames that the
switches count on the links between them, up at the root and down at the leaves. Times are medians
of the slowest rank, in turns.

    python -m bench.sparse.uplinks [--uplinks 10 100] [--tree 2x4] [--elements 1048576] [--docs]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.compression import CompressedAllreduce, HierarchicalTopK, TopK
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.tree import TreeShape, TreeSystem

from bench.in_docs import DOCS, put_table
from bench.machine import describe, machine
from bench.ranks import run_ranks_on

TIMEOUT = 600.0
SEED = 4
HEAD = ("gradients by", "uplink bytes, MB", "of flat top-k", "ms")
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


def reduce_all(size: int, density: float, repetitions: int, report: Path) -> None:
    """What each rank does. It writes its times, and rank 0 the bytes of each way."""
    with p4reduce.init(timeout=TIMEOUT) as comm, ControlClient() as control:
        rng = np.random.default_rng([SEED, comm.rank])
        gradient = rng.standard_normal(size).astype(np.float32)
        count = round(size * density)

        def flat() -> Any:
            largest = np.argpartition(np.abs(gradient), size - count)[size - count :]
            chosen = p4reduce.SparseElements(largest, gradient[largest], size)
            return comm.allreduce_sparse(chosen, dense=True)

        flat_blocks = CompressedAllreduce(comm, TopK(world_size=comm.size, density=density))
        two = HierarchicalTopK(comm, density)
        narrow = HierarchicalTopK(comm, density, precision="int8", seed=SEED)
        blocks = HierarchicalTopK(comm, density, blocks=True)
        ways: dict[str, Callable[[], Any]] = {
            "all": lambda: comm.allreduce(gradient),
            BASE: flat,
            "two levels, elements": lambda: two.sum(gradient, "two"),
            "two levels, elements, int8 across": lambda: narrow.sum(gradient, "narrow"),
            BLOCKS: lambda: flat_blocks.sum(gradient, "blocks"),
            "two levels, blocks": lambda: blocks.sum(gradient, "two blocks"),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        moved: dict[str, list[int]] = {way: [] for way in ways}
        for _ in range(repetitions):
            for reducer in (two, narrow, blocks):
                reducer.reset()
            flat_blocks.compressor.reset()
            for way, call in ways.items():
                comm.barrier()
                before = uplink_bytes(control) if comm.rank == 0 else 0
                comm.barrier()
                start = time.perf_counter()
                call()
                times[way].append(time.perf_counter() - start)
                comm.barrier()
                if comm.rank == 0:
                    moved[way].append(uplink_bytes(control) - before)
                comm.barrier()
        for reducer in (two, narrow, blocks):
            reducer.close()
        report.write_text(json.dumps({"times": times, "moved": moved}))


def rows(reports: list[dict[str, Any]]) -> list[list[str]]:
    """The lines of the table."""
    moved = {way: float(np.median(some)) for way, some in reports[0]["moved"].items()}
    shown = []
    for way, total in moved.items():
        slowest = np.max([one["times"][way] for one in reports], axis=0)
        milliseconds = f"{float(np.median(slowest)) * 1e3:,.0f}"
        base = moved[BLOCKS if "blocks" in way else BASE]
        shown.append([way, f"{total / 1e6:.3f}", f"{total / base:.2f}", milliseconds])
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tree", default="2x4")
    parser.add_argument("--uplinks", type=float, nargs="+", default=[10.0, 100.0], help="Mbit/s")
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the gradient")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help="update docs/experiments.md")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        reduce_all(options.elements, options.density, options.repetitions, options.report)
        return
    shape = TreeShape.parse(options.tree)
    script = ["-m", "bench.sparse.uplinks", "--elements", str(options.elements)]
    script += ["--density", str(options.density), "--repetitions", str(options.repetitions)]
    table: list[list[str]] = []
    for rate in options.uplinks:
        with run_directory() as directory:
            choice = choose("embedded", "local")
            with TreeSystem(choice, directory, directory, shape, uplinks=rate) as tree:
                reports = run_ranks_on(tree, directory, shape.ranks, script, TIMEOUT)
        table += [[f"{rate:g} Mbit/s", *row] for row in rows(reports)]
    print(describe(machine()))
    print(f"{options.elements:,} float32, {shape.text}, {options.density:.1%}, seed {SEED}\n")
    head = ("uplinks", *HEAD)
    for line in (head, *table):
        print(f"{line[0]:>12}  {line[1]:34}" + "".join(f"{cell:>18}" for cell in line[2:]))
    if options.docs:
        put_table("uplinks", head, table, DOCS / "experiments.md")


if __name__ == "__main__":
    main()
