# SPDX-License-Identifier: Apache-2.0
"""That ranks have called different things, as one of them finds it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce.errors import MismatchError
from p4reduce.tensors.stream import Collective


@dataclass(frozen=True)
class Dispute:
    """A rank's dispute with others.

    Attributes:
        error: what this rank knows by itself.
        found: the collective in which it showed.
        under_way: this and the others, in order; it may be an earlier one that ranks differ in.
    """

    error: MismatchError
    found: Collective
    under_way: tuple[Collective, ...]

    @classmethod
    def of(cls, found: Collective, under_way: Iterable[Collective]) -> Dispute:
        """Return one about a collective."""
        error = MismatchError(
            f"{found.description}: the ranks do not agree on what they reduce. This is what this "
            "rank called; another one called something else, or in another order (operation, "
            "shape, dtype, precision, root, counts, name and order have to be the same)"
        )
        return cls(error, found, tuple(sorted(under_way, key=lambda one: one.sequence)))
