# SPDX-License-Identifier: Apache-2.0
"""The process beside each rank of an MPI program: the other end of `csrc/pmpi.c`.

It reads requests from descriptor 3, and sums numbers in place in the memory of descriptor 4. It
ends when the rank ends for any reason. The network ends with the last of a host's proxies.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import select
import signal
import socket
import struct
import sys

import numpy as np
import numpy.typing as npt
from p4reduce_common.threads import new_thread

from p4reduce.communicator import Communicator
from p4reduce.errors import ClosedError
from p4reduce.hosts import this_host
from p4reduce.job_network import JobNetwork
from p4reduce.meeting import SocketMeeting, open_meeting
from p4reduce.mpi.sums import (
    ENGINE,
    TIMEOUT_ENVIRONMENT,
    TYPES,
    TYPES_ENVIRONMENT,
    collective_timeout,
    sum_in_place,
    summed_types,
)
from p4reduce.started_job import join_all

# pmpi.c has the same numbers.
_HEAD = struct.Struct("=IIQ")
_BEGIN, _JOIN, _SUM, _LEAVE, _END, _HERE = range(1, 7)
_SOCKET, _MEMORY = 3, 4
_JOIN_TIMEOUT = 60.0  # seconds
_DTYPES = [np.dtype(name) for name in TYPES.values()]


class Proxy:
    """Answers one rank's requests.

    Args:
        memory: the descriptor of the shared memory.
    """

    def __init__(self, memory: int) -> None:
        self._descriptor = memory
        self._memory: mmap.mmap | None = None
        self._job: Communicator | None = None
        self._network: JobNetwork | None = None
        self._listener: socket.socket | None = None
        self._collective_timeout = 0.0

    def answer(self, kind: int, type_: int, count: int, text: str) -> str:
        """Answer a request, and return the answer's text. Raises any error of it."""
        if kind == _HERE:
            return this_host(text)
        if kind == _BEGIN:
            own = {
                TYPES_ENVIRONMENT: os.environ.get(TYPES_ENVIRONMENT, ""),
                TIMEOUT_ENVIRONMENT: str(collective_timeout()),
            }
            summed_types()  # an error in it is one before anything starts
            self._listener, place = open_meeting(text.split("\n")[:-1])
            return json.dumps({"place": place, "secret": secrets.token_hex(16), "variables": own})
        if kind == _JOIN:
            place, _, message = text.partition("\n")
            rank, size = map(int, place.split())
            self._join(rank, size, **json.loads(message))
            self._collective_timeout = collective_timeout()
            chosen = summed_types()
            return str(sum(1 << bit for bit, one in enumerate(_DTYPES) if one.name in chosen))
        if kind == _SUM:
            if self._job is None:
                raise ClosedError("this rank has left the job")
            sum_in_place(self._job, self._numbers(_DTYPES[type_], count), self._collective_timeout)
            return ""
        if kind == _LEAVE:
            self.close_job()
        else:
            self.close()
        return ""

    def _join(
        self, rank: int, size: int, place: str, secret: str, variables: dict[str, str]
    ) -> None:
        os.environ.update(variables)
        meeting = SocketMeeting(place, rank, size, _JOIN_TIMEOUT, secret, self._listener)
        with meeting:
            self._job, self._network = join_all(
                rank, meeting.exchange, ENGINE, timeout=_JOIN_TIMEOUT, lease=0.0
            )

    def close_job(self) -> None:
        """Leave the job."""
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def close(self) -> None:
        """Leave the job and the network."""
        self.close_job()
        self.close_network()

    def close_network(self) -> None:
        """Let go of the network."""
        network, self._network = self._network, None
        if network is not None:
            network.close()

    def _numbers(self, dtype: np.dtype[np.generic], count: int) -> npt.NDArray[np.generic]:
        needed = count * dtype.itemsize
        if self._memory is None or len(self._memory) < needed:
            # An array may still use the old one, which ends with it.
            self._memory = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)
        return np.frombuffer(self._memory, dtype, count)


def main() -> int:
    """Answer requests until the rank has ended or says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for mpirun, which ends the ranks
    proxy = Proxy(_MEMORY)
    kind = 0
    with socket.socket(fileno=_SOCKET) as rank:
        args = rank, proxy
        new_thread(_watch, "p4reduce-watch", lambda _: os._exit(1), args=args).start()
        try:
            while kind != _END and (head := _read(rank, _HEAD.size)):
                kind, type_, size = _HEAD.unpack(head)
                text = "" if kind == _SUM else _read(rank, size).decode()
                try:
                    failed, said = 0, proxy.answer(kind, type_, size, text)
                except Exception as error:
                    failed, said = 1, f"{type(error).__name__}: {error}"
                data = said.encode()
                rank.sendall(_HEAD.pack(failed, 0, len(data)) + data)
        except OSError:
            return 1  # the rank has gone in the middle of a request
        finally:
            proxy.close()
    return 0


def _watch(rank: socket.socket, proxy: Proxy) -> None:
    """End this process when the rank has gone, also in the middle of a sum with others."""
    poll = select.poll()
    poll.register(rank, select.POLLRDHUP)
    poll.poll()
    proxy.close_network()
    os._exit(1)


def _read(rank: socket.socket, size: int) -> bytes:
    """Read that many bytes; none if the rank has ended."""
    data = b""
    while len(data) < size:
        more = rank.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main())
