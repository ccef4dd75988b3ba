# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of an embedding, which never become dense arrays. Run it with

p4reduce-lab exec -n 4 -- python examples/embedding.py
"""

from __future__ import annotations

import numpy as np
import p4reduce

WORDS, WIDTH = 10_000, 64
BATCH = 128  # words a rank and step; few of them are rare
STEPS = 10
RATE = 0.5


def main() -> None:
    """Learns vectors of words; each rank sees words of its own."""
    truth = np.random.default_rng(0).standard_normal((WORDS, WIDTH)).astype(np.float32)
    with p4reduce.init() as comm:
        rng = np.random.default_rng(1 + comm.rank)
        # Only rank 0's beginning counts; the others get it, and send nothing.
        table = (0.1 * rng.standard_normal((WORDS, WIDTH))).astype(np.float32)
        comm.broadcast(table, root=0, out=table)

        before = comm.stats.bytes_sent
        losses = []
        for _ in range(STEPS):
            words = np.minimum(rng.zipf(1.3, BATCH) - 1, WORDS - 1)
            difference = table[words] - truth[words]
            losses.append(float(np.mean(difference**2)))
            # A word that came several times has several rows here: they are added up.
            gradient = p4reduce.SparseRows(words, difference, table.shape)
            total = comm.allreduce_sparse(gradient)
            # The mean over all occurrences of a word, on all ranks.
            ones = p4reduce.SparseRows(words, np.ones(BATCH, np.int32), (WORDS,))
            times = comm.allreduce_sparse(ones)
            rows = np.searchsorted(times.indices, total.indices)
            table[total.indices] -= RATE * total.values / times.values[rows, None]
        sent = comm.stats.bytes_sent - before

        # All ranks have computed the same, bit for bit.
        sums = comm.allgather(table.sum(dtype=np.float64))
        assert (sums == sums[0]).all()
        print(
            f"rank {comm.rank} of {comm.size}: mean square error {losses[0]:.2f} to "
            f"{losses[-1]:.2f}, {sent / STEPS / 1e3:.0f} kB sent a step, "
            f"{table.nbytes / 1e3:.0f} kB if it were dense"
        )
        assert losses[-1] < losses[0] / 2


if __name__ == "__main__":
    main()
