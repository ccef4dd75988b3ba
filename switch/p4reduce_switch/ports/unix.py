# SPDX-License-Identifier: Apache-2.0
"""A port on a Unix socket: needs no root and no interface.

`SOCK_SEQPACKET` listening at a path, one peer at a time. A peer may come and go as a cable may be
plugged; a second one is turned away. A message is a frame, unless the peer asks for more and there
is machine code (see `ports_peer`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from p4reduce_native.link import Kind, why_not

from p4reduce_switch.ports.batch import FrameBatches
from p4reduce_switch.ports.egress_queue import EgressQueue
from p4reduce_switch.ports.peer import GONE, LinkPeer, Peer, SocketPeer, has_gone
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, Poller, PortError, PortSpec, PortStats
from p4reduce_switch.seldom import Seldom

__all__ = ["UnixListener", "UnixPort", "prepare_socket_path", "why_gone"]

log = logging.getLogger(__name__)

_BUFFER_BYTES = 4 << 20
_MAX_PATH_BYTES = 107  # sun_path, less the final zero
# Until one of these passes, epoll would report the same peer again at once, for ever.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def prepare_socket_path(path: Path, kind: socket.SocketKind) -> None:
    """Make `path` free to bind: no dead socket is in the way.

    A directory that is missing is not made: more likely the path is misspelt, and whoever wants to
    connect looks elsewhere.

    Raises:
        OSError: ENOENT if there is no such directory, EADDRINUSE if somebody listens there or it is
            no socket, or what the file system says.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(
            errno.ENAMETOOLONG, f"the path is longer than {_MAX_PATH_BYTES} bytes", str(path)
        )
    if not path.parent.is_dir():
        raise OSError(errno.ENOENT, f"there is no directory {path.parent}", str(path))
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise OSError(errno.EADDRINUSE, "a file that is not a socket is in the way", str(path))
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            log.info("removing %s, left behind by a process that ended", path)
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue of connections is full: somebody listens
    raise OSError(errno.EADDRINUSE, "another process listens there", str(path))


class UnixListener(ABC):
    """What every port on a Unix socket does in Python: the socket file, and whose turn it is.

    Raises:
        PortError: the path is in use, not writable or too long, or its directory is missing.
    """

    def __init__(self, spec: PortSpec) -> None:
        assert spec.socket_path is not None
        self.number = spec.number
        self.description = str(spec)
        self._path = spec.socket_path
        self._poller: Poller | None = None
        self._who = ""  # the peer, while there is one
        self._accepting = True
        self._scarcity = Seldom(log)
        try:
            prepare_socket_path(self._path, socket.SOCK_SEQPACKET)
            self._listener = _listen(self._path)
        except OSError as error:
            raise PortError(f"port {spec}: {error.strerror or error}") from None
        self._inode = self._path.stat().st_ino

    @property
    def is_up(self) -> bool:
        return bool(self._who)

    @property
    def has_carrier(self) -> bool:
        return True  # as a link on which nobody has been heard yet

    def limit_backlog(self, limited: bool) -> None:  # noqa: B027 - there is nothing to do
        """A peer's socket holds little anyway."""

    def flush(self) -> None:
        """Nothing is buffered that has to be written; a peer that could not be taken may wait."""
        if not self._accepting and self._poller is not None:
            self._accepting = True
            self._poller.change(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._disconnect("is cut off: the switch stops")
        if self._poller is not None:
            self._poller.unwatch(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    # -- In the data plane's thread --------------------------------------------------------------

    @abstractmethod
    def _connected(self, peer: socket.socket) -> None:
        """Serve a peer, whose socket is the port's from now on."""

    @abstractmethod
    def _hear_out(self) -> None:
        """If the peer has hung up, take in what it has sent, and let it go."""

    @abstractmethod
    def _disconnecting(self) -> None:
        """Stop serving the peer, and close its socket."""

    def _accept_from(self, poller: Poller) -> None:
        self._poller = poller
        poller.watch(self._listener.fileno(), select.EPOLLIN, self._on_connection)

    def _on_connection(self, events: int) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            self._not_accepted(error)
            return
        if self._who:
            # The peer so far may have hung up in the same turn.
            self._hear_out()
        who = _credentials(peer)
        if self._who:
            log.warning(
                "port %s: refused a second peer (%s); the port has one already (%s)",
                self.description,
                who,
                self._who,
            )
            peer.close()
            return
        peer.setblocking(False)
        _grow_buffers(peer)
        self._connected(peer)
        self._who = who
        log.info("port %s is up: peer is %s", self.description, who)

    def _not_accepted(self, error: OSError) -> None:
        if error.errno == errno.EAGAIN:
            return  # it has gone meanwhile
        scarce = error.errno in _SCARCE
        if scarce and self._poller is not None:
            self._accepting = False
            self._poller.change(self._listener.fileno(), 0)
        self._scarcity.warning(
            "port %s: cannot take a peer: %s%s",
            self.description,
            error.strerror,
            "; it waits until there is room (see ulimit -n)" if scarce else "",
        )

    def _disconnect(self, why: str) -> None:
        if not self._who:
            return
        self._who = ""
        self._disconnecting()
        log.info("port %s is down: its peer %s", self.description, why)


class UnixPort(UnixListener):
    """A port that Python serves. Opened by the constructor; `close` removes the socket file.

    Args:
        spec: with its `socket_path`.
        batches: the data plane's buffers, for peers without machine code.
        best: the fastest kind of link to agree to.

    Raises:
        PortError: the path is in use, not writable or too long, or its directory is missing.
    """

    def __init__(self, spec: PortSpec, batches: FrameBatches, best: Kind = Kind.SHARED) -> None:
        super().__init__(spec)
        self.stats = PortStats()
        self._batches = batches
        self._on_frames: Callable[[], None] = _nothing
        self._best = best
        self._is_native = _is_native()
        self._peer: Peer | None = None
        self._events = 0
        self._egress = EgressQueue(
            self.stats, max_bytes=MAX_FRAME_BYTES, set_events=lambda _: self._set_events()
        )

    @property
    def has_room(self) -> bool:
        return self._egress.is_empty

    def attach(self, poller: Poller, on_frames: Callable[[], None]) -> None:
        self._on_frames = on_frames
        self._accept_from(poller)

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

    def poll_stats(self) -> None:
        """All counts are kept here."""

    # -- In the data plane's thread --------------------------------------------------------------

    def _connected(self, peer: socket.socket) -> None:
        self._peer = (
            LinkPeer(peer, self._best, self.stats)
            if self._is_native
            else SocketPeer(peer, self._batches, self.stats)
        )
        assert self._poller is not None
        self._events = self._peer.events(frames_wait=False)
        self._poller.watch(self._peer.fileno(), self._events, self._on_events)

    def _hear_out(self) -> None:
        while self._peer is not None and has_gone(self._peer.fileno()):
            self._on_events(GONE)

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


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(4)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _grow_buffers(peer: socket.socket) -> None:
    """Ask for large buffers; what the kernel's limits leave of it is enough to work."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        peer.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def why_gone(error: OSError) -> str:
    """How a log line about a peer that is lost ends."""
    if error.errno == errno.EPROTO:
        return "is cut off: it wrote what cannot be into the shared memory"
    return "left" if error.errno == errno.EPIPE else f"left: {error.strerror}"


def _is_native() -> bool:
    reason = why_not()
    if reason is not None:
        _tell_once(reason)
    return reason is None


@functools.cache
def _tell_once(reason: str) -> None:
    log.info("Unix ports take one frame per message, by Python: %s", reason)


def _credentials(peer: socket.socket) -> str:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(raw[i : i + 4], "little", signed=True) for i in (0, 4))
    return f"process {pid} of user {uid}"
