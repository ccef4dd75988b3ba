# SPDX-License-Identifier: Apache-2.0
"""Tells an operator, while the switch runs, that ports drop frames of wrong length."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Port

__all__ = ["PortWarnings"]

log = logging.getLogger(__name__)

_INTERVAL_S = 10.0  # between warnings about one port

_Counts = tuple[int, int, int]


class PortWarnings:
    """Warns of each port whose counts have changed, at a slow rate.

    Whoever sends such frames is told nothing and only sees no answer.
    """

    def __init__(self, ports: Iterable[Port]) -> None:
        self._ports = tuple(ports)
        self._reported: dict[int, _Counts] = {}
        self._next: dict[int, float] = {}

    def look(self, now: float) -> None:
        """Warn if there is a reason; `now` in seconds."""
        for port in self._ports:
            stats = port.stats
            counts = (stats.rx_too_short, stats.rx_too_long, stats.tx_too_long)
            before = self._reported.get(port.number, (0, 0, 0))
            if counts == before or now < self._next.get(port.number, now):
                continue
            log.warning(
                "port %s drops frames of wrong length: until now came %d empty ones and %d of more "
                "than %d bytes, and %d could not be sent",
                port.description,
                counts[0],
                counts[1],
                MAX_FRAME_BYTES,
                counts[2],
            )
            self._reported[port.number] = counts
            self._next[port.number] = now + _INTERVAL_S
