# SPDX-License-Identifier: Apache-2.0
"""One rank: compresses, sums over the switch, and writes what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.compression import CompressedAllreduce, compressor_by_name

NAMES = (
    "none",
    "int16",
    "int8",
    "topk:0.1",
    "topk:0.2/int8",
    "topk:0.8",
    "threshold:0.3",
    "cat",
    "cat:own",
    "cat:level",
    "cat:paper",
    "cat:signs",
    "cat:paper,level",
    "cat:paper,blocks",
)
NOT_FINITE = ("topk:0.1", "randomk:0.2", "cat", "cat:own", "cat:level")
NAN_STEP, NAN_RANK, NAN_AT = 1, 1, 256 * 7 + 5
STEPS = 3
SIZE = 256 * 50 + 3


def gradient(rank: int, step: int) -> npt.NDArray[np.float32]:
    """Blocks of very different size, so that there is something to choose."""
    random = np.random.default_rng([rank, step])
    scale = np.repeat(random.lognormal(0, 1.5, 51), 256)[:SIZE]
    return (random.standard_normal(SIZE) * scale).astype(np.float32)


def main() -> None:
    directory = Path(sys.argv[1])
    results, blocks, moved, dense, spoilt = [], [], [], [], []
    with p4reduce.init(timeout=120.0) as communicator:
        rank = communicator.rank
        for name in NAMES:
            compressor = compressor_by_name(name, communicator.size)
            reduce = CompressedAllreduce(communicator, compressor)
            before = communicator.stats
            for step in range(STEPS):
                results.append(reduce.sum(gradient(rank, step), name))
                dense.append(reduce.latest[name].dense)
            after = communicator.stats
            blocks.append(after.blocks_sent - before.blocks_sent)
            # What a timer sent again depends on the machine's load.
            again = after.retransmissions - before.retransmissions
            moved.append((after.bytes_sent - before.bytes_sent, again))
        for name in NOT_FINITE:
            compressor = compressor_by_name(name, communicator.size)
            reduce = CompressedAllreduce(communicator, compressor)
            for step in range(STEPS):
                given = gradient(rank, step)
                if (rank, step) == (NAN_RANK, NAN_STEP):
                    given[NAN_AT] = np.nan
                spoilt.append(reduce.sum(given, name))
        half = np.full(3000, 32_000, dtype=np.float16)
        reduce = CompressedAllreduce(communicator, compressor_by_name("none", communicator.size))
        half_mean = reduce.mean(np.float16(1 + rank) * half, "half")
    np.savez(
        directory / f"rank{rank}.npz",
        results=np.array(results),
        blocks=np.array(blocks),
        moved=np.array(moved),
        dense=np.array(dense),
        spoilt=np.array(spoilt),
        half_mean=half_mean,
    )


if __name__ == "__main__":
    main()
