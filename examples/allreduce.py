# SPDX-License-Identifier: Apache-2.0
"""The smallest program over p4reduce. Run it with

p4reduce-lab exec -n 4 -- python examples/allreduce.py
"""

from __future__ import annotations

import numpy as np
import p4reduce


def main() -> None:
    """Sums a tensor over all ranks, in three ways."""
    with p4reduce.init() as comm:
        mine = np.full((3, 1000), comm.rank + 1, np.float32)

        total = comm.allreduce(mine)
        assert (total == comm.size * (comm.size + 1) / 2).all()

        comm.allreduce(mine, op=p4reduce.MEAN, out=mine)  # in place
        assert (mine == (comm.size + 1) / 2).all()

        # Several at once: they share the switch's slots, and waiting comes last.
        tensors = {name: np.arange(500, dtype=np.int32) for name in ("weights", "bias")}
        handles = [
            comm.allreduce_async(tensor, name=name, out=tensor) for name, tensor in tensors.items()
        ]
        for handle in handles:
            handle.wait()
        assert (tensors["bias"] == comm.size * np.arange(500)).all()

        print(f"rank {comm.rank} of {comm.size}: sum {total[0, 0]:g}, mean {mine[0, 0]:g}")


if __name__ == "__main__":
    main()
