# SPDX-License-Identifier: Apache-2.0
"""One rank of one contender: ``python -m p4reduce_lab.compare.rank CONTENDER SOCKET …``.

It obeys commands from a socket. It prepares a tensor, starts to reduce it at a time that all ranks
get (they share the machine's clock), and reports the time that it took.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from p4reduce_lab.compare.backends import ReduceBackend, backend_of
from p4reduce_lab.compare.cells import CONTENDERS, CompareCase
from p4reduce_lab.compare.tensors import is_sum, tensor
from p4reduce_lab.processes.threads import thread_seconds


def busiest(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the processor seconds of the busiest thread between two samples."""
    return max((spent - before.get(name, 0.0) for name, spent in after.items()), default=0.0)


def interface_bytes(interface: str | None) -> tuple[int, int]:
    """Return the bytes that an interface has sent and received; (0, 0) if it does not exist."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == interface:
            columns = figures.split()
            return int(columns[8]), int(columns[0])
    return 0, 0


class CompareRank:
    """Prepares, runs and reports.

    Args:
        backend: how this rank reduces.
        interface: of this namespace, by which it goes; None: there are no links.
    """

    def __init__(self, backend: ReduceBackend, interface: str | None) -> None:
        self._backend = backend
        self._interface = interface
        self._case = CompareCase("", "")
        self._size = self._turn = 0

    def prepare(self, case: CompareCase, size: int, turn: int) -> dict[str, Any]:
        """Make this rank's tensor."""
        self._case, self._size, self._turn = case, size, turn
        backend = self._backend
        backend.prepare(case, tensor(case, backend.rank, backend.ranks, size, turn))
        return {}

    def run(self, at: float) -> dict[str, Any]:
        """Reduce, starting at `at`. Return the seconds from then on, and the costs."""
        backend = self._backend
        repeated, moved = backend.repeated(), interface_bytes(self._interface)
        threads = thread_seconds()
        cpu = time.process_time()
        time.sleep(max(at - time.monotonic(), 0.0))
        backend.reduce()
        seconds = time.monotonic() - at
        cpu = time.process_time() - cpu
        most = busiest(threads, thread_seconds())
        up, down = interface_bytes(self._interface)
        return {
            "seconds": seconds,
            "cpu": cpu,
            "busiest": most,
            "up": up - moved[0],
            "down": down - moved[1],
            "repeated": backend.repeated() - repeated,
        }

    def check(self) -> dict[str, Any]:
        """Return whether the result is the sum."""
        case, size, turn = self._case, self._size, self._turn
        return {"right": is_sum(self._backend.result(), case, self._backend.ranks, size, turn)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("socket")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--interface")
    options = parser.parse_args()
    backend = backend_of(options.contender, options.rank, options.ranks)
    rank = CompareRank(backend, options.interface)
    with Client(options.socket, "AF_UNIX") as connection, contextlib.suppress(EOFError):
        connection.send({"ranks": backend.ranks})
        while True:
            order = connection.recv()
            connection.send(getattr(rank, order.pop("do"))(**order))
    backend.close()


if __name__ == "__main__":
    main()
