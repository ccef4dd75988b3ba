# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks as bits, as the switch has them, and as words, for messages."""

from __future__ import annotations

from p4reduce.wire.format import MAX_WORLD_SIZE


def ranks_of(bits: int) -> tuple[int, ...]:
    """Return the ranks whose bits are set."""
    return tuple(rank for rank in range(MAX_WORLD_SIZE) if bits >> rank & 1)


def describe_ranks(ranks: tuple[int, ...]) -> str:
    """Return "rank 3" or "ranks 1, 3"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks)) or '(none)'}"
