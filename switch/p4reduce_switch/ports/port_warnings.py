# SPDX-License-Identifier: Apache-2.0
"""Warns of frames that ports drop."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from p4reduce_switch.ports.port import MAX_FRAME_BYTES, SwitchPort

log = logging.getLogger(__name__)

_INTERVAL_S = 10.0  # between warnings about one port, or of missing peers
_NAMED = 4  # ports in one warning of missing peers

_Counts = tuple[int, int, int]


class PortWarnings:
    """Warns of frames of wrong length and of frames to ports without a peer, at a limited rate.

    The sender of such a frame gets no answer.
    """

    def __init__(self, ports: Iterable[SwitchPort]) -> None:
        self._ports = tuple(ports)
        self._reported: dict[int, _Counts] = {}
        self._next: dict[int, float] = {}
        self._unsent: dict[int, int] = {}
        self._next_unsent = float("-inf")

    def look(self, now: float) -> None:
        """Warn if there is a reason; `now` in seconds."""
        self._look_at_lengths(now)
        self._look_for_peers(now)

    def _look_for_peers(self, now: float) -> None:
        """One line for all ports: a frame that is flooded goes to each of them."""
        if now < self._next_unsent:
            return
        counts = {port.number: port.stats.tx_down for port in self._ports}
        more = [
            port for port in self._ports if counts[port.number] > self._unsent.get(port.number, 0)
        ]
        if not more:
            return
        named = [f"port {port.description} ({counts[port.number]})" for port in more[:_NAMED]]
        if len(more) > _NAMED:
            named.append(f"and {len(more) - _NAMED} more")
        log.warning(
            "frames to ports without a peer, or with their interface down, are dropped; so far: %s",
            ", ".join(named),
        )
        self._unsent = counts
        self._next_unsent = now + _INTERVAL_S

    def _look_at_lengths(self, now: float) -> None:
        for port in self._ports:
            stats = port.stats
            counts = (stats.rx_too_short, stats.rx_too_long, stats.tx_too_long)
            before = self._reported.get(port.number, (0, 0, 0))
            if counts == before or now < self._next.get(port.number, now):
                continue
            log.warning(
                "port %s drops frames of wrong length: so far %d were empty, %d had more than %d "
                "bytes, and %d could not be sent",
                port.description,
                counts[0],
                counts[1],
                MAX_FRAME_BYTES,
                counts[2],
            )
            self._reported[port.number] = counts
            self._next[port.number] = now + _INTERVAL_S
