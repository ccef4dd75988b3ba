# SPDX-License-Identifier: Apache-2.0
"""Operations of a whole ring: gather, and reduce in two passes of n - 1 steps.

The reduction is the usual one. An array is cut into one part per rank. Each part goes round the
ring once to be summed, and once more to distribute the sum. Each rank sends 2 (n
- 1) / n of the array (Patarasuk and Yuan, JPDC 2009).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.ring.links import RingLinks

Bytes = npt.NDArray[np.uint8]


async def gather(links: RingLinks, mine: bytes) -> list[bytes]:
    """Return all ranks' parts in order. All have equally many bytes.

    `links.awaited` is the rank whose part is awaited.

    Raises:
        P4ReduceError: as for `RingLinks.exchange`, or a part has another length.
    """
    rank, size = links.who.rank, len(links.who.addresses)
    parts = {rank: mine}
    passing = mine
    try:
        for step in range(1, size):
            links.awaited = (rank - step) % size
            passing = parts[links.awaited] = await links.exchange(passing)
            if len(passing) != len(mine):
                raise P4ReduceError(
                    f"rank {links.who.before} sent {len(passing):,} bytes where all ranks send "
                    f"{len(mine):,}: the ranks are out of step"
                )
    finally:
        links.awaited = links.who.before
    return [parts[number] for number in range(size)]


async def reduce(links: RingLinks, rows: Bytes, combine: Callable[[Bytes, Bytes], object]) -> None:
    """Reduce an array over all ranks, in place.

    `rows` is contiguous, and of the same shape on all ranks. `combine` adds the second of two parts
    to the first; each is some rows, flat.

    Raises:
        P4ReduceError: as for `RingLinks.exchange`, or a part has another length.
    """
    rank, size = links.who.rank, len(links.who.addresses)
    cuts = [len(rows) * number // size for number in range(size + 1)]
    parts = [rows[first:end].reshape(-1) for first, end in itertools.pairwise(cuts)]
    for step in range(2 * (size - 1)):
        # What came in the last step, reduced or complete, is what continues in this one.
        out, into = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        came = np.frombuffer(await links.exchange(out.data), np.uint8)
        if len(came) != len(into):
            raise P4ReduceError(
                f"rank {links.who.before} sent {len(came):,} bytes of a part that has "
                f"{len(into):,}: the ranks are out of step"
            )
        if step < size - 1:
            combine(into, came)
        else:
            into[:] = came
