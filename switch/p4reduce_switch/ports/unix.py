# SPDX-License-Identifier: Apache-2.0
"""A port on a Unix socket: needs neither root nor an interface.

It listens at a path (`SOCK_SEQPACKET`), and has one peer at a time. A peer may come and go like a
cable; a second one is refused. A message is a frame, unless both ends agree on more
(csrc/link/hello.c). A port of another switch may connect; a message is then always a frame.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from p4reduce_common.grpc_channels import UNIX_PATH_BYTES
from p4reduce_native.cores import path_at_core
from p4reduce_native.loop import Loop, LoopPort, PortKind

from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.peer_port import PeerListener, PeerPort, grow_buffers
from p4reduce_switch.ports.place import PortOptions, PortPlace, PortSpec
from p4reduce_switch.ports.port import Poller, PortError, SwitchPort

log = logging.getLogger(__name__)

# Until one of these passes, epoll would report the same peer again at once, for ever.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def prepare_socket_path(path: Path, kind: socket.SocketKind) -> None:
    """Make `path` free to bind by removing a dead socket.

    A missing directory is not made: more likely the path is misspelt, and workers look elsewhere.

    Raises:
        OSError: ENAMETOOLONG, ENOENT if the directory is missing, EADDRINUSE if a process listens
            there or it is no socket, or what the file system says.
    """
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise OSError(
            errno.ENAMETOOLONG, f"the path is longer than {UNIX_PATH_BYTES} bytes", str(path)
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


@dataclass(frozen=True, slots=True)
class UnixPlace(PortPlace):
    """A socket in the file system, where a worker connects."""

    path: Path

    scheme = "unix:"
    form = "unix:PATH"
    purpose = "for a Unix socket"

    @classmethod
    def parse(cls, where: str) -> UnixPlace:
        if not where:
            raise ValueError(f"has no path after '{cls.scheme}'")
        return cls(Path(where))

    def __str__(self) -> str:
        return f"{self.scheme}{self.path}"

    def open(self, spec: PortSpec, options: PortOptions) -> SwitchPort:
        return UnixPort(spec, options.captures)

    def at_core(self, core: int) -> PortPlace:
        return UnixPlace(Path(path_at_core(str(self.path), core)))


@dataclass(frozen=True, slots=True)
class UnixCallingPlace(UnixPlace):
    """A socket in the file system, where another switch listens."""

    scheme = "unix-to:"
    form = "unix-to:PATH"
    purpose = "to connect to one of another switch"

    def open(self, spec: PortSpec, options: PortOptions) -> SwitchPort:
        return UnixCallingPort(spec, options.captures)

    def at_core(self, core: int) -> PortPlace:
        return PortPlace.at_core(self, core)  # refuses: the other switch chooses the path


class UnixPort(PeerListener):
    """A port on a Unix socket. `close` removes the socket file.

    Args:
        spec: a port at a `UnixPlace`.
        captures: how frames are captured, or None.

    Raises:
        PortError: the path is in use, not writable or too long, its directory is missing, or the
            capture cannot be written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        assert isinstance(spec.place, UnixPlace)
        super().__init__(spec, log, names_peer=False)
        self._path = spec.place.path
        self._accepting = True
        try:
            prepare_socket_path(self._path, socket.SOCK_SEQPACKET)
            self._listener = _listen(self._path)
        except OSError as error:
            raise PortError(f"port {spec}: {error.strerror or error}") from None
        self._inode = self._path.stat().st_ino
        self._loop: Loop | None = None
        self._open_capture(captures)

    def flush(self) -> None:
        """Try again to accept a waiting peer. No frames are buffered here."""
        if not self._accepting and self._poller is not None:
            self._accepting = True
            self._poller.change(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    # -- In the data plane's thread --------------------------------------------------------------

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        self._loop = loop
        return loop.add_port(PortKind.UNIX, self.number, capture_fd)

    def _on_arrival(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            self._not_accepted(error)
            return
        if self._who:
            # It may have hung up, which the loop has not seen yet.
            assert self._loop is not None
            self._loop.drain(self._in_loop)
            self.poll_events()
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
        grow_buffers(peer)
        try:
            self._in_loop.attach(peer.fileno())
        except OSError as error:
            peer.close()
            self._not_accepted(error)
            return
        peer.detach()
        self._who = who
        log.info("port %s is up: peer is %s", self.description, who)

    def _not_accepted(self, error: OSError) -> None:
        if error.errno == errno.EAGAIN:
            return  # it has gone meanwhile
        scarce = error.errno in _SCARCE
        if scarce and self._poller is not None:
            self._accepting = False
            self._poller.change(self._listener.fileno(), 0)
        self._warnings.warning(
            "port %s: cannot accept a peer: %s%s",
            self.description,
            error.strerror,
            "; it waits until there is room (see ulimit -n)" if scarce else "",
        )


class UnixCallingPort(PeerPort):
    """A port that connects to another switch's socket, and reconnects when that is gone.

    Args:
        spec: a port at a `UnixCallingPlace`.
        captures: how frames are captured, or None.

    Raises:
        PortError: the capture cannot be written.
    """

    def __init__(self, spec: PortSpec, captures: Captures | None = None) -> None:
        assert isinstance(spec.place, UnixPlace)
        super().__init__(spec, log, names_peer=False)
        self._path = spec.place.path
        self._open_capture(captures)

    def flush(self) -> None:
        """Try again to connect to the other switch. No frames are buffered here."""
        if self._poller is not None and not self._who:
            self._call()

    # -- In the data plane's thread --------------------------------------------------------------

    def _join(self, loop: Loop, capture_fd: int) -> LoopPort:
        return loop.add_port(PortKind.UNIX, self.number, capture_fd)

    def _begin(self, poller: Poller) -> None:
        self._poller = poller
        self._call()

    def _call(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.setblocking(False)
        try:
            peer.connect(os.fspath(self._path))
            who = _credentials(peer)
            grow_buffers(peer)
            self._in_loop.attach(peer.fileno())
        except OSError as error:
            peer.close()
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                self._warnings.warning("port %s: %s", self.description, error.strerror)
            return
        peer.detach()
        self._who = who
        log.info("port %s is up: peer is %s", self.description, who)


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


def _credentials(peer: socket.socket) -> str:
    ucred = struct.Struct("iII")  # pid_t, uid_t, gid_t
    pid, uid, _ = ucred.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size))
    return f"process {pid} of user {uid}"
