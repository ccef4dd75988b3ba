# SPDX-License-Identifier: Apache-2.0
"""What a rank does with an input before its first frame: it finds the blocks' exponents.

python -m bench.worker.prepare
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import Format

SLOTS = 128
REPETITIONS = 30


def main() -> None:
    """Prints medians for a few sizes."""
    lanes = Format.INT32.lanes
    for megabytes in (1, 4, 16, 32):
        array = np.random.default_rng(0).standard_normal(megabytes << 18).astype(np.float32)
        out = np.empty_like(array)
        seconds = []
        for sequence in range(REPETITIONS):
            start = time.process_time()
            Collective(
                Call("allreduce", "float32", array.size, Operation.SUM),
                Blocks(array, lanes),
                Blocks(out, lanes),
                sequence=sequence,
                slots=SLOTS,
                timeout=3600.0,
            )
            seconds.append(time.process_time() - start)
        median = statistics.median(seconds)
        print(
            f"{megabytes:3} MB: {1e3 * median:.2f} ms, {1e9 * median / array.size:.2f} ns a number"
        )


if __name__ == "__main__":
    main()
