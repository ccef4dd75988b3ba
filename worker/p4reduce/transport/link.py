# SPDX-License-Identifier: Apache-2.0
"""A transport to a port of the embedded switch, by the fastest way that both ends know.

Both are asked when the connection is made (`p4reduce_native.link`, `csrc/link/link.h`): rings in
shared memory, else one frame per message.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from p4reduce_native.cores import path_at_core
from p4reduce_native.link import UNIX_KINDS, Link, LinkKind, offers

from p4reduce.errors import ConfigurationError, SwitchUnreachableError
from p4reduce.inherited import keep_from_children
from p4reduce.transport.base import RECEIVE_BATCH, Indices, Transport
from p4reduce.transport.port_type import Look, PortType
from p4reduce.transport.unix import connect, hung_up
from p4reduce.wire.format import FRAME_STRIDE, Endpoint
from p4reduce.wire.frames import MAX_FRAME_BYTES, FrameBuffer

log = logging.getLogger(__name__)

LINK_ENVIRONMENT = "P4REDUCE_LINK"

ANSWER_SECONDS = 1.0
"""How long the switch may take to say what it knows. One that is older never does."""

# The switch did not answer, or what passes messages on between us and it kept the memory back.
_CONNECT_AGAIN = frozenset({errno.ETIMEDOUT, errno.EPROTO})


class FramesOverLink:
    """A transport on a link.

    Attributes:
        link: for C, while this is open.
        received: the frames of the last batch, valid until the next.
        wake_fd: the eventfd that `wake` writes to.

    Args:
        description: for people.
        link: that it uses, and closes at the end.
    """

    endpoint: Endpoint | None = None
    lossless = False
    shares_link = False  # an interface, or shared memory, belongs to one switch

    def __init__(self, description: str, link: Link) -> None:
        self._description = description
        self.link = link
        self.received = FrameBuffer(RECEIVE_BATCH)
        self._lengths_at: int = self.received.lengths.ctypes.data
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._broken = self._closed = False
        keep_from_children(self)

    def descriptors(self) -> Iterator[int]:
        if not self._closed:
            yield self.link.fileno()

    @property
    def dropped(self) -> int:
        return 0  # what finds no room is counted where it is sent, or sent again

    @property
    def kind(self) -> LinkKind:
        """The kind of link."""
        return self.link.kind

    def receive(self) -> int:
        count = self.link.receive_rows(
            self.received.address, FRAME_STRIDE, MAX_FRAME_BYTES, self._lengths_at, RECEIVE_BATCH
        )
        if count < 0:
            self._broken = True
            raise broken(self._description, -count)
        return count

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        rows = np.ascontiguousarray(rows, np.int64)
        sent = self.link.send_rows(
            buffer.address, FRAME_STRIDE, buffer.lengths.ctypes.data, rows.ctypes.data, len(rows)
        )
        if sent == -errno.EPIPE and not self._broken:
            return len(rows)  # lost; `receive` gives what the switch has sent, and then its end
        if sent < 0:
            raise broken(self._description, -sent)
        return sent

    def wait(self, timeout: float, *, writable: bool = False) -> bool:
        woken = self.link.wait(self.wake_fd, timeout, writable=writable)
        if woken:
            os.eventfd_read(self.wake_fd)
        return woken

    def wake(self) -> None:
        if not self._closed:
            os.eventfd_write(self.wake_fd, 1)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.link.close()
            os.close(self.wake_fd)


class LinkTransport(FramesOverLink):
    """`SOCK_SEQPACKET` to begin with, then as agreed.

    Args:
        path: where the switch listens for this port.
        best: the fastest kind of link to ask for.
        answer_seconds: how long to wait for the switch's answer.

    Raises:
        SwitchUnreachableError: there is no such socket, nobody listens at it, or the switch hung
            up.
        NativeUnavailableError: there is no machine code.
    """

    lossless = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        best: LinkKind = LinkKind.SHARED,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        description = f"unix:{os.fspath(path)}"
        link = _connect(Path(path), description, best, answer_seconds)
        super().__init__(description, link)
        if link.kind != best:
            log.warning(
                "%s: frames go by a %s link, slower than the %s one that was asked for",
                description,
                link.kind.name.lower(),
                best.name.lower(),
            )


def _connect(path: Path, description: str, best: LinkKind, answer_seconds: float) -> Link:
    sock = connect(path)
    try:
        return Link.connect(sock, offers(best), answer_seconds)
    except OSError as error:
        sock.close()
        if error.errno not in _CONNECT_AGAIN:
            raise broken(description, error.errno or 0) from None
        log.warning("%s: one frame per message, which is slower: %s", description, error.strerror)
    # Anew, so that an answer that comes late cannot be taken for a frame.
    return Link.connect(connect(path), 0, 0.0)


def broken(description: str, code: int) -> SwitchUnreachableError:
    """Return the error of a broken transport, for an errno."""
    if code == errno.EPIPE:
        return hung_up(description)
    if code == errno.EPROTO:
        return SwitchUnreachableError(
            f"the switch wrote invalid data into the memory shared by {description}"
        )
    return SwitchUnreachableError(
        f"cannot exchange frames with the switch by {description}: {os.strerror(code)}"
    )


def _open_unix(path: str, _udp_port: int, _environ: Mapping[str, str]) -> Transport:
    return LinkTransport(path, _best_kind())


def _best_kind() -> LinkKind:
    """Return the fastest kind of link that `$P4REDUCE_LINK` allows."""
    names = {kind.name.lower(): kind for kind in UNIX_KINDS}
    given = os.environ.get(LINK_ENVIRONMENT) or LinkKind.SHARED.name.lower()
    if given not in names:
        raise ConfigurationError(f"P4REDUCE_LINK={given}: expected single or shared")
    return names[given]


def _look(_path: str) -> Iterator[Look]:
    """Do nothing: opening raises the error that names the cause."""
    yield from ()


UNIX = PortType(
    "unix:",
    "unix:PATH",
    _open_unix,
    _look,
    at_core=lambda name, core: "unix:" + path_at_core(name.removeprefix("unix:"), core),
)
