# SPDX-License-Identifier: Apache-2.0
"""A rank's CPU time for each number by lanes, for `p4reduce_lab.planning.home`.

One rank at a switch in shared memory. What a block takes is told from what a number takes by
comparing with float32, whose numbers take `PREPARE_SECONDS` (`bench.worker.prepare`).

    python -m bench.planner.lanes [--numbers 8000000] [--turns 7]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import p4reduce
import p4reduce_lab
from p4reduce.tensors.precision import PRECISIONS
from p4reduce_lab.planning.schemes import PREPARE_SECONDS

WAYS = {
    "float32": ("int32", False),
    "int16": ("int16", False),
    "int8": ("int8", False),
    "int8 with feedback": ("int8", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--numbers", type=int, default=8_000_000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    numbers = np.random.default_rng(1).standard_normal(options.numbers).astype(np.float32)
    block = 0.0
    with p4reduce_lab.local(ranks=1), p4reduce.init(0, 1) as comm:
        for name, (precision, feedback) in WAYS.items():
            kept = np.zeros_like(numbers) if feedback else None
            spent = []
            for _ in range(options.turns):
                began = time.process_time()
                comm.allreduce_async(numbers, precision=precision, residual=kept).wait()
                spent.append(time.process_time() - began)
            each = min(spent) / numbers.size  # load slows the others
            lanes = PRECISIONS[precision].lanes
            if precision == "int32":
                block = (each - PREPARE_SECONDS) * lanes
            own = each - block / lanes
            print(f"{name:20} {1e9 * each:.2f} ns per number, {1e9 * own:.2f} without blocks")


if __name__ == "__main__":
    main()
