# SPDX-License-Identifier: Apache-2.0
"""What it costs to keep a copy of each input, which is made while the blocks' exponents are found.

python -m bench.worker.replay_copy
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.replay_log import ReplayLog
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
        replay_log = ReplayLog()
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for sequence in range(2 * REPETITIONS):
            keeps = sequence % 2 == 1
            start = time.perf_counter()
            collective = Collective(
                Call("allreduce", "float32", array.size, Operation.SUM),
                Blocks(array, lanes),
                Blocks(out, lanes),
                sequence=sequence // 2,
                slots=SLOTS,
                timeout=3600.0,
                keep=replay_log.copy_pool if keeps else None,
            )
            if keeps:
                replay_log.add(collective)
            seconds[keeps].append(time.perf_counter() - start)
            collective.finish()  # so that the one before is let go of
        without, with_copy = (1e3 * statistics.median(seconds[keeps]) for keeps in (False, True))
        print(
            f"{megabytes:3} MB: exponents {without:.2f} ms, with the copy {with_copy:.2f} ms, "
            f"{with_copy - without:.2f} ms more"
        )


if __name__ == "__main__":
    main()
