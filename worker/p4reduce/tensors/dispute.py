# SPDX-License-Identifier: Apache-2.0
"""A dispute: ranks have called different things, as one of them sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce.errors import MismatchError
from p4reduce.tensors.stream import Collective


@dataclass(frozen=True)
class Dispute:
    """A rank's dispute with others.

    Attributes:
        error: what this rank knows without the others.
        found: the collective in which it was noticed.
        in_flight: all collectives in flight, in order; ranks may differ in an earlier one.
    """

    error: MismatchError
    found: Collective
    in_flight: tuple[Collective, ...]

    @classmethod
    def of(cls, found: Collective, in_flight: Iterable[Collective]) -> Dispute:
        """Return a dispute about a collective."""
        error = MismatchError(
            f"{found.description}: the ranks do not agree on what they reduce. This is what this "
            "rank called; another one called something else, or in another order (operation, "
            "shape, dtype, precision, root, counts, name and order have to be the same)"
        )
        return cls(error, found, tuple(sorted(in_flight, key=lambda one: one.sequence)))
