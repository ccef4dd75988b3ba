# SPDX-License-Identifier: Apache-2.0
"""What a port that Python serves does with its peer, on whatever socket that has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p4reduce_switch.ports.egress_queue import EgressQueue
from p4reduce_switch.ports.listener import OnePeer
from p4reduce_switch.ports.peer import GONE, Peer, why_gone
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Poller, PortStats

__all__ = ["PeerPort"]


class PeerPort(OnePeer):
    """Beside the listener of a kind of socket: `class UnixPort(PeerPort, UnixListener)`.

    The constructor of such a class calls `_begin`, and its `_connected` calls `_serve`.
    """

    def _begin(self) -> None:
        self.stats = PortStats()
        self._peer: Peer | None = None
        self._on_frames: Callable[[], None] = _nothing
        self._events = 0
        self._egress = EgressQueue(
            self.stats, max_bytes=MAX_FRAME_BYTES, set_events=lambda _: self._set_events()
        )

    @property
    def has_room(self) -> bool:
        return self._egress.is_empty

    def attach(self, poller: Poller, on_frames: Callable[[], None]) -> None:
        self._on_frames = on_frames
        self._take_peers(poller)

    def receive(self) -> Sequence[bytes]:
        if self._peer is None:
            return ()
        try:
            frames = self._peer.receive()
        except OSError as error:
            self._disconnect(why_gone(error))
            return ()
        self._set_events()
        return frames

    def send(self, frames: Sequence[bytes]) -> None:
        if self._peer is None:
            self.stats.tx_down += len(frames)
            return
        try:
            self._egress.send(self._peer.send, frames)
        except OSError as error:
            self._disconnect(why_gone(error))

    # -- In the data plane's thread --------------------------------------------------------------

    def _serve(self, peer: Peer) -> None:
        self._peer = peer
        assert self._poller is not None
        self._events = peer.events(frames_wait=False)
        self._poller.watch(peer.fileno(), self._events, self._on_events)

    def _disconnecting(self) -> None:
        peer, self._peer = self._peer, None
        assert peer is not None
        self._egress.clear()
        if self._poller is not None:
            self._poller.unwatch(peer.fileno())
        peer.close()

    def _on_events(self, events: int) -> None:
        if self._peer is not None and not self._egress.is_empty:
            try:
                self._egress.drain(self._peer.send)
            except OSError as error:
                self._disconnect(why_gone(error))
        if events & GONE and self._peer is not None:
            self._peer.hung_up()
        self._on_frames()

    def _set_events(self) -> None:
        """Tell the poller, if what has to be waited for has changed."""
        if self._peer is None or self._poller is None:
            return
        events = self._peer.events(frames_wait=not self._egress.is_empty)
        if events != self._events:
            self._events = events
            self._poller.change(self._peer.fileno(), events)


def _nothing() -> None:
    """Where frames go before the port is attached: it has none then."""
