# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks as bits in switches, and as text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Child:
    """The ranks of one bit of a switch: a rank, or all ranks below another switch."""

    ranks: tuple[int, ...]
    switch: str = ""  # the name of that other switch


@dataclass(frozen=True)
class Level:
    """A switch above a rank, and the meaning of its bits: the lowest one is `children[0]`."""

    switch: str  # its name; "" where there is only one
    children: tuple[Child, ...]

    def bits(self, ranks: Iterable[int]) -> int:
        """Return the bits of the children that are, or have below them, one of these ranks."""
        wanted = set(ranks)
        return sum(
            1 << number
            for number, child in enumerate(self.children)
            if not wanted.isdisjoint(child.ranks)
        )

    def ranks(self, bits: int) -> tuple[int, ...]:
        """Return the ranks that some bits stand for."""
        return tuple(sorted(rank for child in self._of(bits) for rank in child.ranks))

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """Return the ranks at the switch itself, in the order of their bits."""
        return tuple(rank for child in self.children if not child.switch for rank in child.ranks)

    def missing(self, heard: int) -> int:
        """Return the bits that are not in `heard`."""
        return ((1 << len(self.children)) - 1) & ~heard

    def describe(self, bits: int) -> str:
        """Return "ranks 1, 3", and for switches "ranks 4 to 7 (switch leaf-b)"."""
        children = self._of(bits)
        single = tuple(rank for child in children if not child.switch for rank in child.ranks)
        parts = [describe_ranks(single)] if single or not children else []
        parts += [
            f"{describe_ranks(child.ranks)} (switch {child.switch})"
            for child in children
            if child.switch
        ]
        return " and ".join(parts)

    def _of(self, bits: int) -> list[Child]:
        return [child for number, child in enumerate(self.children) if bits >> number & 1]


def one_switch(world_size: int) -> tuple[Level, ...]:
    """Return the levels of a job whose ranks are all on one switch: rank r has bit r."""
    return (Level("", tuple(Child((rank,)) for rank in range(world_size))),)


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3", "ranks 1, 3" or "ranks 4 to 7"."""
    if len(ranks) > 2 and all(after == before + 1 for before, after in pairwise(ranks)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return list_ranks(ranks)


def list_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 4, 5, 6"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks)) or '(none)'}"
