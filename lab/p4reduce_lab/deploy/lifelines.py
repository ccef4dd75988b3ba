# SPDX-License-Identifier: Apache-2.0
"""How long a job's network lasts: as long as a rank of the job lives, on this host or on another.

Each rank of this host holds a connection to the process that runs its switch. The kernel closes it
when the rank ends, however that is. Ranks on other hosts count while the controller knows them. So
a rank that is killed does not take the switch from those that have to learn of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from p4reduce.control.controller_address import parse_address

from p4reduce_lab.deploy.serving import PAUSE
from p4reduce_lab.switches.embedded import TlsPaths

NAME = "ranks.sock"
STARTER = 0  # our end of a socket; the process that started this one has the other
_LOOK = 0.5  # seconds between two looks whether ranks elsewhere need this host
_REFUSED = 5.0  # seconds; a controller that is started again takes up its switches first
_STARTING = 60.0  # seconds that a controller of this host may be without an answer
_SILENT = 10.0  # seconds without an answer, after which the controller's host counts as lost
_TAKES_PART = frozenset({"joined", "attached"})


class Lifelines:
    """The connections of this host's ranks.

    That of the rank which has started this process is one as well.

    Args:
        directory: for the socket.

    Attributes:
        path: of the socket.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(4096)
        self._ranks: list[socket.socket] = []
        self._by_starter = True

    def wait(self) -> bool:
        """Wait a moment; return whether all ranks of this host have ended."""
        ends = {self._listener.fileno(): None, **{one.fileno(): one for one in self._ranks}}
        poll = select.poll()
        for descriptor in [*([STARTER] if self._by_starter else []), *ends]:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(PAUSE * 1000):
            rank = ends.get(descriptor)
            if descriptor == STARTER:
                self._by_starter = _is_open(descriptor)
            elif rank is None:
                self._ranks.append(self._listener.accept()[0])
            elif not _is_open(descriptor):
                self._ranks.remove(rank)
                rank.close()
        return not (self._by_starter or self._ranks)

    def tell(self, why: str) -> None:
        """Tell all ranks of this host why the network ends."""
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.sendall(json.dumps({"failed": why}).encode() + b"\n")


def _is_open(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 4096))
    except OSError:
        return False


class _Looks:
    """Looks now and then whether this host is still needed. A no is final."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._needed = True
        self._next = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if self._needed and now >= self._next:
            self._needed = self._look()
            self._next = time.monotonic() + _LOOK
        return self._needed


def ranks_elsewhere(controller: str, files: TlsPaths) -> Callable[[], bool]:
    """Return a function that says whether the controller knows ranks that still take part.

    For the controller's own host. A controller that does not answer for a minute counts as one
    without ranks: this host may have lost the address, by which nobody reaches it then.
    """
    heard = time.monotonic()

    def look() -> bool:
        nonlocal heard
        # Only where a job has ranks on several hosts, and only at its end: it takes long to load.
        from p4reduce.control import control_pb2 as pb
        from p4reduce.control.client import ControlClient, ControlError
        from p4reduce.control.tls import TlsFiles

        with ControlClient(controller, TlsFiles(*files)) as client:
            try:
                jobs = client.call(client.stub.ListJobs, pb.ListJobsRequest()).jobs
            except ControlError:  # it may be starting again
                return time.monotonic() < heard + _STARTING
        heard = time.monotonic()
        return any(member.state in _TAKES_PART for job in jobs for member in job.members)

    return _Looks(look)


def controller_there(controller: str) -> Callable[[], bool]:
    """Return a function that says whether the controller, on another host, still answers."""
    place = parse_address(controller)
    assert place is not None
    heard = time.monotonic()

    def look() -> bool:
        nonlocal heard
        patience = _SILENT
        try:
            socket.create_connection(place, timeout=2.0).close()
        except ConnectionRefusedError:
            patience = _REFUSED
        except OSError:
            pass
        else:
            heard = time.monotonic()
        return time.monotonic() < heard + patience

    return _Looks(look)
