# SPDX-License-Identifier: Apache-2.0
"""What ports on Unix and UDP sockets share: one peer at a time, which comes and goes.

Python accepts a peer and ends its connection. In between, the loop in C moves its frames.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from abc import abstractmethod

from p4reduce_native.loop import PortEvent

from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.port import Poller, SwitchPort
from p4reduce_switch.rate_limited_log import RateLimitedLog

_BUFFER_BYTES = 4 << 20


class PeerPort(SwitchPort):
    """A port that serves one peer at a time.

    Args:
        spec: the port of the command line.
        log: the logger of the subclass's module.
        names_peer: whether the log names a peer that leaves.
    """

    def __init__(self, spec: PortSpec, log: logging.Logger, *, names_peer: bool) -> None:
        super().__init__(spec.number, str(spec))
        self._poller: Poller | None = None
        self._who = ""  # the peer, while there is one
        self._warnings = RateLimitedLog(log)
        self._log = log
        self._names_peer = names_peer

    @property
    def is_up(self) -> bool:
        return bool(self._who)

    @property
    def has_carrier(self) -> bool:
        return True  # as a link on which nobody has been heard yet

    def poll_events(self) -> PortEvent:
        """Handle the event of the loop, and return it."""
        event, error = self._in_loop.take_port_event()
        if event is PortEvent.DOWN:
            self._disconnect(_why_gone(error))
        return event

    def close(self) -> None:
        self._disconnect("is cut off: the switch stops")
        self._poller = None
        super().close()

    # -- In the data plane's thread --------------------------------------------------------------

    def _disconnect(self, why: str) -> None:
        """Stop serving the peer, if there is one."""
        if not self._who:
            return
        who, self._who = self._who, ""
        self._in_loop.detach()
        whose = f"{who} " if self._names_peer else ""
        self._log.info("port %s is down: its peer %s%s", self.description, whose, why)


class PeerListener(PeerPort):
    """A port that listens on a socket."""

    _listener: socket.socket  # made by the subclass

    def close(self) -> None:
        if self._poller is not None:
            self._poller.unwatch(self._listener.fileno())
        super().close()
        self._listener.close()

    # -- In the data plane's thread --------------------------------------------------------------

    def _look_up(self, events: int) -> None:
        self.poll_events()  # the peer so far may have left in the same iteration
        self._on_arrival()

    @abstractmethod
    def _on_arrival(self) -> None:
        """Somebody wants to be the peer."""

    def _begin(self, poller: Poller) -> None:
        self._poller = poller
        poller.watch(self._listener.fileno(), select.EPOLLIN, self._look_up)


def grow_buffers(peer: socket.socket) -> None:
    """Ask for large buffers; what the kernel's limits leave of it is enough to work."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        peer.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _why_gone(error: int) -> str:
    """How a log line about a peer that is lost ends, by an errno."""
    if error == errno.EPROTO:
        return "is cut off: it wrote invalid data into the shared memory"
    return "left" if error == errno.EPIPE else f"left: {os.strerror(error)}"
