# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of the ranks: gives orders to all ranks of a contender, and collects
times."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from p4reduce_lab.compare.cells import CompareCase
from p4reduce_lab.compare.rank import busiest
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.threads import thread_seconds

AHEAD = 0.03  # seconds from the order to start to the start, for all ranks to be asleep by then
_SLICE = 0.5  # seconds between two looks at whether the processes are there


@dataclass(frozen=True)
class ReductionCost:
    """The costs of one reduction.

    Attributes:
        seconds: from the agreed start until the last rank had the sum.
        cpu: seconds of a rank's process, on average.
        switch_cpu: seconds of the switch's process; 0 without one.
        busiest: share of the time for which the busiest thread of ranks and switch computed.
        machine: share of all cores' time that was spent on anything.
        up, down: bytes through the links of the rank that moved most.
        repeated: frames that timers sent again, of all ranks.
    """

    seconds: float
    cpu: float
    switch_cpu: float
    busiest: float
    machine: float
    up: int
    down: int
    repeated: int


class ContenderRanks:
    """The processes of one contender.

    Args:
        name: of the contender.
        path: of the socket that they are to connect to; a short one.
        number: how many will come.
        check: raises if one of the processes has ended.
        switch: the switch's process, if there is one.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        number: int,
        check: Callable[[], None],
        switch: int | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self._number = number
        self._check = check
        self._switch = switch
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(number)
        self._streams: list[_RankStream] = []

    def gather(self, timeout: float) -> None:
        """Wait until all ranks have connected.

        Raises:
            LabError: a process ended, or the time is up.
        """
        deadline = time.monotonic() + timeout
        self._listener.settimeout(_SLICE)
        while len(self._streams) < self._number:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._check()
                if time.monotonic() > deadline:
                    raise LabError(
                        f"{len(self._streams)} of {self._number} ranks of {self.name} were ready "
                        f"within {timeout:g} s"
                    ) from None
                continue
            stream = _RankStream(Connection(connection.detach()), self.name, self._check)
            self._streams.append(stream)
            greeting = stream.read(deadline)
            if greeting["ranks"] != self._number:
                raise LabError(
                    f"{self.name} has {greeting['ranks']} ranks, but {self._number} were started"
                )

    def turn(
        self, case: CompareCase, size: int, number: int, timeout: float, *, check: bool
    ) -> ReductionCost:
        """Reduce once.

        Args:
            case: how; of this contender.
            size: bytes.
            number: of the turn, which the blocks that are not zero depend on.
            timeout: seconds for it.
            check: look whether the sum is right.

        Raises:
            LabError: a process ended, the time is up, or the sum is wrong.
        """
        self._ask(timeout, do="prepare", case=case, size=size, turn=number)
        threads = thread_seconds(self._switch) if self._switch else {}
        machine = machine_seconds()
        at = time.monotonic() + AHEAD
        reports = self._ask(timeout, do="run", at=at)
        busy, total = (b - a for a, b in zip(machine, machine_seconds(), strict=True))
        after = thread_seconds(self._switch) if self._switch else {}
        seconds = max(report["seconds"] for report in reports)
        most = max([busiest(threads, after), *(report["busiest"] for report in reports)])
        if check:
            for answer in self._ask(timeout, do="check"):
                if not answer["right"]:
                    raise LabError(f"{case.name}, {size:,} bytes: the sum is wrong")
        return ReductionCost(
            seconds=seconds,
            cpu=sum(report["cpu"] for report in reports) / len(reports),
            switch_cpu=sum(after.values()) - sum(threads.get(name, 0.0) for name in after),
            busiest=most / seconds,
            machine=busy / total if total else 0.0,
            up=max(report["up"] for report in reports),
            down=max(report["down"] for report in reports),
            repeated=sum(report["repeated"] for report in reports),
        )

    def _ask(self, timeout: float, **order: Any) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout
        for stream in self._streams:
            stream.write(order)
        return [stream.read(deadline) for stream in self._streams]

    def close(self) -> None:
        """End the ranks."""
        for stream in self._streams:
            stream.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> ContenderRanks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _RankStream:
    """Messages from and to one rank."""

    def __init__(self, connection: Connection, name: str, check: Callable[[], None]) -> None:
        self._connection = connection
        self._name = name
        self._check = check

    def write(self, what: dict[str, Any]) -> None:
        try:
            self._connection.send(what)
        except OSError:
            self._check()
            raise LabError(f"a rank of {self._name} has hung up") from None

    def read(self, deadline: float) -> dict[str, Any]:
        try:
            while not self._connection.poll(_SLICE):
                self._check()
                if time.monotonic() > deadline:
                    raise LabError(f"a rank of {self._name} did not answer in time")
            answer: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError):
            time.sleep(_SLICE)  # whose process ends a moment after its socket
            self._check()
            raise LabError(f"a rank of {self._name} has hung up") from None
        return answer

    def close(self) -> None:
        self._connection.close()


def machine_seconds() -> tuple[float, float]:
    """Return all cores' busy and total time, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return float(sum(ticks) - idle), float(sum(ticks))
