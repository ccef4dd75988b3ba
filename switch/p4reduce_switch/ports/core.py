# SPDX-License-Identifier: Apache-2.0
"""The core that a port belongs to, if several data planes have the same ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Core:
    """One of the cores of `p4reduce-switch --cores`. The default is a switch with one core.

    Attributes:
        number: from 0.
        count: the number of cores.
        listeners: by port, the inherited descriptor of the socket at which UDP peers arrive. For
            other ports, the port opens a socket itself.
    """

    number: int = 0
    count: int = 1
    listeners: Mapping[int, int] = field(default_factory=dict)
