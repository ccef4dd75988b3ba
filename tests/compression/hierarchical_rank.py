# SPDX-License-Identifier: Apache-2.0
"""One rank of a tree: top-k in two levels, and what came of it in each step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.compression import HierarchicalTopK
from p4reduce.errors import ConfigurationError

STEPS = 4
SIZE = 3001
DENSITY = 0.05
BLOCKS = 0.3  # share of the blocks
NAN_STEP, NAN_RANK, NAN_AT = 1, 3, 1700
KINDS = ("whole", "int32", "float")


def gradient(kind: str, rank: int, step: int) -> npt.NDArray[Any]:
    """Numbers that rarely are equally large; sums hold the floats of "whole" exactly."""
    random = np.random.default_rng([rank, step])
    values = random.standard_normal(SIZE) * random.lognormal(0, 1, SIZE)
    if kind == "float":
        return values.astype(np.float32).reshape(-1, 1)
    return np.rint(2**14 * values).astype(np.int32 if kind == "int32" else np.float32)


def main() -> None:
    directory = Path(sys.argv[1])
    saved: dict[str, Any] = {}
    with p4reduce.init(timeout=120.0) as comm, HierarchicalTopK(comm, DENSITY) as reduce:
        saved["leaf"] = comm.leaf
        for kind in KINDS:
            total = reduce.mean if kind == "float" else reduce.sum
            saved[kind] = [total(gradient(kind, comm.rank, step), kind) for step in range(STEPS)]
        with HierarchicalTopK(comm, BLOCKS, blocks=True, slots=8) as reduce_blocks:
            saved["blocks"] = [
                reduce_blocks.sum(gradient("whole", comm.rank, step), "blocks")
                for step in range(STEPS)
            ]
            broken = gradient("whole", comm.rank, 0)
            if comm.rank == NAN_RANK:
                broken[NAN_AT] = np.inf
            saved["broken"] = reduce_blocks.sum(broken, "broken")
        spoilt = []
        for step in range(STEPS):
            mine = gradient("whole", comm.rank, step)
            if (comm.rank, step) == (NAN_RANK, NAN_STEP):
                mine[NAN_AT] = np.inf
            spoilt.append(reduce.sum(mine, "spoilt"))
        saved["spoilt"] = spoilt
        saved["tiny"] = reduce.sum(np.ones(1, np.float32), "tiny")
        saved["refused"] = [_complaint(reduce, comm, what) for what in ("size", "mean", "leaf")]
        reduce.reset("whole")
        saved["again"] = reduce.sum(gradient("whole", comm.rank, 0), "whole")
    np.savez(directory / f"rank{comm.rank}.npz", **saved)


def _complaint(reduce: HierarchicalTopK, comm: Any, what: str) -> str:
    try:
        if what == "size":
            reduce.sum(np.ones(SIZE + 8, np.float32), "whole")
        elif what == "mean":
            reduce.mean(gradient("whole", comm.rank, 0), "whole")
        else:
            HierarchicalTopK(comm, leaf=min(comm.rank, 1)).close()
    except (ValueError, ConfigurationError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
