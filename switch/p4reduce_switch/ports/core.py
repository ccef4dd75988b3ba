# SPDX-License-Identifier: Apache-2.0
"""Which of several data planes with the same ports a port belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Core"]


@dataclass(frozen=True, slots=True)
class Core:
    """One of the cores of `p4reduce-switch --cores`; the default is a switch with one.

    Attributes:
        number: from 0.
        count: how many there are.
        listeners: by port, the socket at which it hears of peers of a UDP port: a descriptor that
            was inherited. What is not here, the port opens itself.
    """

    number: int = 0
    count: int = 1
    listeners: Mapping[int, int] = field(default_factory=dict)
