# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a ring do together: gather, and reduce in n - 1 steps twice.

The reduction is the usual one. An array is cut into as many parts as there are ranks. Each part
goes once round the ring and is added to, and then the sums go round once more. Each rank sends 2 (n
- 1) / n of the array (Patarasuk and Yuan, JPDC 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.ring.links import Links

Bytes = npt.NDArray[np.uint8]


async def gather(links: Links, mine: bytes) -> list[bytes]:
    """Return what each rank has, in order; all have as many bytes.

    `links.awaited` is the rank whose part is missing.

    Raises:
        P4ReduceError: as `Links.exchange`; or a part came with another length.
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


async def reduce(
    links: Links, parts: Sequence[Bytes], combine: Callable[[Bytes, Bytes], None]
) -> None:
    """Reduce arrays over all ranks, in place.

    Args:
        links: to the neighbours.
        parts: one for each rank, contiguous; each of the same length on all ranks.
        combine: changes the first of two parts into both together.

    Raises:
        P4ReduceError: as `Links.exchange`; or a part came with another length.
    """
    rank, size = links.who.rank, len(links.who.addresses)
    for step in range(2 * (size - 1)):
        # What came in the last step, reduced or complete, is what goes on in this one.
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
