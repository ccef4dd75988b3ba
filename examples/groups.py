# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks, and a small sum that does not wait for large ones. Run it with

p4reduce-lab exec -n 4 -- python examples/groups.py
"""

from __future__ import annotations

import numpy as np
import p4reduce


def main() -> None:
    """Sums over halves of the ranks, over all of them, and something urgent in between."""
    with p4reduce.init(slots=32, urgent_slots=8) as comm:
        # Ranks of one color are a group; here the even ones and the odd ones. Each group is a job
        # of its own on the switch, by the same ports.
        half = comm.split(comm.rank % 2)
        assert half is not None
        with half:
            gradient = np.full(1_000_000, comm.rank, np.float32)
            everything = comm.allreduce_async(gradient)
            ours = half.allreduce_async(gradient)

            # Called last, but it waits for neither.
            stop = np.array([comm.rank == 3], np.int32)
            votes = comm.allreduce(stop, priority=p4reduce.Priority.URGENT)

            members = range(comm.rank % 2, comm.size, 2)
            assert ours.wait()[0] == sum(members)
            assert everything.wait()[0] == sum(range(comm.size))
            print(
                f"rank {comm.rank}: {half.rank} of {half.size} in its half, whose sum is "
                f"{sum(members)}; {votes[0]} of {comm.size} want to stop"
            )


if __name__ == "__main__":
    main()
