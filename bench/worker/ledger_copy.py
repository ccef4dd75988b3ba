# SPDX-License-Identifier: Apache-2.0
"""What it costs to keep a copy of each input, beside finding the blocks' exponents.

python -m bench.worker.ledger_copy
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from p4reduce.session.ledger import Ledger
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import Format

SLOTS = 128
REPETITIONS = 30


def main() -> None:
    """Prints medians for a few sizes."""
    lanes = Format.INT32.lanes
    for megabytes in (1, 4, 16):
        array = np.random.default_rng(0).standard_normal(megabytes << 18).astype(np.float32)
        out = np.empty_like(array)
        ledger = Ledger()
        prepare, copy = [], []
        for sequence in range(REPETITIONS):
            start = time.perf_counter()
            collective = Collective(
                Call("allreduce", "float32", array.size, Operation.SUM),
                Blocks(array, lanes),
                Blocks(out, lanes),
                sequence=sequence,
                slots=SLOTS,
                timeout=3600.0,
            )
            middle = time.perf_counter()
            ledger.add(collective)
            copy.append(time.perf_counter() - middle)
            prepare.append(middle - start)
            collective.finish()  # so that the one before is let go of
        one, other = (1e3 * statistics.median(times) for times in (prepare, copy))
        print(f"{megabytes:3} MB: exponents {one:.2f} ms, copy {other:.2f} ms ({other / one:.1f}x)")


if __name__ == "__main__":
    main()
