# SPDX-License-Identifier: Apache-2.0
"""Which interface a worker with this environment would take."""

from __future__ import annotations

from dataclasses import dataclass

import p4reduce
from p4reduce.environment import Placement, is_placed, placement
from p4reduce.transport.registry import PORT_TYPES
from p4reduce.transport.select import port_name


@dataclass(frozen=True)
class Interface:
    """The interface that the settings name, with placeholders filled in.

    Attributes:
        given: as set, with `{rank}` and the like; None if none is set.
        name: with placeholders filled in; None if that failed, or none is set.
        who: the rank it was filled in for; empty without placeholders.
        guessed: whether the rank is a guess, because no launcher has set it.
        error: why it could not be filled in.
    """

    given: str | None
    name: str | None = None
    who: str = ""
    guessed: bool = False
    error: str = ""


def forms() -> str:
    """Return the ways to write an interface, for a message."""
    *some, last = (kind.form for kind in reversed(PORT_TYPES))
    return f"{', '.join(some)} or {last}"


def fill(given: str | None) -> Interface:
    """Fill in placeholders as `p4reduce.init` would; for rank 0 if no launcher has set a rank."""
    if given is None:
        return Interface(None)
    try:
        # An interface without braces takes no rank.
        if port_name(given, 0, 0) == given:
            return Interface(given, given)
        guessed = not is_placed()
        place = placement(0, 1) if guessed else placement(None, None)
        name = port_name(given, place.rank, place.local_rank)
    except p4reduce.ConfigurationError as error:
        return Interface(given, error=str(error))
    return Interface(given, name, _who(place), guessed)


def _who(place: Placement) -> str:
    return f"rank {place.rank}, local rank {place.local_rank}"
