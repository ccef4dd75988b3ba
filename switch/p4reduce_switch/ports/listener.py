# SPDX-License-Identifier: Apache-2.0
"""What ports on Unix and UDP sockets have in common: one peer at a time, which comes and goes."""

from __future__ import annotations

import logging
import select
import socket
from abc import ABC, abstractmethod

from p4reduce_switch.ports.port import Poller, PortSpec
from p4reduce_switch.seldom import Seldom

__all__ = ["PEER_BUFFER_BYTES", "OnePeer", "PeerListener"]

PEER_BUFFER_BYTES = 4 << 20
"""Asked of the kernel for each direction; what its limits leave of it is enough to work."""


class OnePeer(ABC):
    """A port that serves one peer at a time.

    Args:
        spec: what was asked for.
        log: of the module that says what sockets these are.
        names_peer: whether the log says which peer it was that left.
    """

    def __init__(self, spec: PortSpec, log: logging.Logger, *, names_peer: bool) -> None:
        self.number = spec.number
        self.description = str(spec)
        self._poller: Poller | None = None
        self._who = ""  # the peer, while there is one
        self._scarcity = Seldom(log)
        self._log = log
        self._names_peer = names_peer

    @property
    def is_up(self) -> bool:
        return bool(self._who)

    @property
    def has_carrier(self) -> bool:
        return True  # as a link on which nobody has been heard yet

    def limit_backlog(self, limited: bool) -> None:  # noqa: B027 - there is nothing to do
        """A peer's socket holds little anyway, and by IP what waits in the kernel is on its way."""

    @abstractmethod
    def flush(self) -> None:
        """Called about once a second: what has to be done again and again."""

    def close(self) -> None:
        self._disconnect("is cut off: the switch stops")
        self._poller = None

    # -- In the data plane's thread --------------------------------------------------------------

    @abstractmethod
    def _take_peers(self, poller: Poller) -> None:
        """Have a peer from now on, whenever there is one."""

    @abstractmethod
    def _disconnecting(self) -> None:
        """Stop serving the peer, and close its socket."""

    def _disconnect(self, why: str) -> None:
        if not self._who:
            return
        who, self._who = self._who, ""
        self._disconnecting()
        whose = f"{who} " if self._names_peer else ""
        self._log.info("port %s is down: its peer %s%s", self.description, whose, why)


class PeerListener(OnePeer):
    """A port that listens at a socket."""

    _listener: socket.socket  # made by the subclass

    def close(self) -> None:
        if self._poller is not None:
            self._poller.unwatch(self._listener.fileno())
        super().close()
        self._listener.close()

    # -- In the data plane's thread --------------------------------------------------------------

    @abstractmethod
    def _on_arrival(self, events: int) -> None:
        """Somebody wants to be the peer."""

    def _take_peers(self, poller: Poller) -> None:
        self._poller = poller
        poller.watch(self._listener.fileno(), select.EPOLLIN, self._on_arrival)
