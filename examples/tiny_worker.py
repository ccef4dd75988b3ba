# SPDX-License-Identifier: Apache-2.0
"""A worker that shows each of its packets: the one to begin with. Run it with

p4reduce-lab exec -n 2 -- python examples/tiny_worker.py

Rank 0 is the reference worker (`p4reduce.reference`): the protocol in plain Python, one packet at a
time, each crafted and taken apart by scapy. It prints what it sends and takes. The other ranks are
ordinary ones, and all of them get the same sum.
"""

from __future__ import annotations

import logging

import numpy as np
import p4reduce
from p4reduce.environment import placement


def main() -> None:
    """Sums three blocks, of which the ranks have different ones."""
    rank = placement(None, None).rank
    if rank == 0:
        logging.basicConfig(format="rank 0 %(message)s")
        logging.getLogger("p4reduce.reference").setLevel(logging.DEBUG)

    gradient = np.zeros(3 * 256, np.float32)
    gradient[256 * (rank % 3) :] = rank + 1  # what comes before is zero, and stays at home

    with p4reduce.init(engine="reference" if rank == 0 else "native", slots=1) as comm:
        total = comm.allreduce(gradient)
        print(f"rank {comm.rank} of {comm.size}: {total[::256]}")


if __name__ == "__main__":
    main()
