# SPDX-License-Identifier: Apache-2.0
"""What the launchers of both switches share.

    with EmbeddedSwitch(directory, ports=4) as switch:
        ...  # switch.grpc_address for a controller, switch.interface for workers

or, where several processes are watched together:

    switch = EmbeddedSwitch(directory, ports=4)
    switch.start(processes, log)
    ...
    switch.wait_ready()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4reduce_common.grpc_channels import UNIX_PATH_BYTES
from p4reduce_common.polling import attempts

from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import GRACE, POLL, ChildFailedError, ChildProcess, Processes

CPU_PORT = 255  # p4src/common/constants.p4
DEVICE_ID = 1
READY_TIMEOUT = 120.0  # seconds, on a busy machine too; a process that ends is seen at once


class SwitchLauncher(ABC):
    """A switch process with its own directory. It has no pipeline yet: that is the controller's.

    Args:
        directory: for the sockets, the log and the captures; must exist, must be the switch's
            alone, and its path must be short (a Unix socket's has at most 107 bytes).
        pcap: write each port's frames to the directory as well.

    Attributes:
        ports: the port numbers with their places at the switch: an interface, or unix:PATH.
        interface: the value of P4REDUCE_INTERFACE for workers on this machine, with {port} in it;
            empty if the caller made the ports.
        grpc_address: where P4Runtime is served. A socket in the file system, so that every network
            namespace reaches it and no port number has to be found that is still free later.
    """

    name: str
    """As `make run SWITCH=…` has it."""

    slots: int | str
    """How many a job should have in flight, if nobody says otherwise; "auto": by what is free."""

    prefix: Sequence[str] = ()
    """What to put before the command so that it runs in a network namespace."""

    def __init__(self, directory: Path, *, pcap: bool = False) -> None:
        self.directory = directory
        self.log = directory / "switch.log"
        self.ports: Mapping[int, str] = {}
        self.interface = ""
        self._pcap = pcap
        self._socket = directory / "switch.sock"
        if len(str(self._socket).encode()) > UNIX_PATH_BYTES:
            raise LabError(
                f"{self._socket} is too long for a socket: at most {UNIX_PATH_BYTES} bytes"
            )
        self.grpc_address = f"unix:{self._socket}"
        self._child: ChildProcess | None = None
        self._processes: Processes | None = None

    @property
    def pid(self) -> int | None:
        """The switch's process id, once it was started."""
        return None if self._child is None else self._child.process.pid

    @property
    def child(self) -> ChildProcess | None:
        """The process with its log, once it was started."""
        return self._child

    def start(self, processes: Processes, log: Path | None = None) -> None:
        """Start the process, watched over by `processes`, without waiting for it.

        The process dies with this one, however this one ends (see p4reduce_lab.processes.tether).

        Raises:
            UnavailableError: something that it needs is not installed.
        """
        if log is not None:
            self.log = log
        self._processes = processes
        self._socket.unlink(missing_ok=True)  # one that a crash has left
        command = [*self.prefix, *self._command()]
        self._child = processes.start(f"switch ({self.name})", command, log=self.log)

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until P4Runtime is served.

        Raises:
            ChildFailedError: the process ended; has the end of its log.
            LabError: the time (in seconds) is up.
        """
        for _ in attempts(timeout, POLL):
            ready = self._is_ready()
            self.check()
            if ready:
                return
        raise LabError(
            f"the {self.name} switch did not serve {self.grpc_address} within {timeout:g} s; its "
            f"log is {self.log}"
        )

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.returncode is None

    def check(self) -> None:
        """Raise ChildFailedError, with the end of the log, if the process does not run."""
        if self._child is None:
            raise LabError(f"the {self.name} switch was not started")
        if not self.alive():
            raise ChildFailedError([self._child])

    def stop(self) -> None:
        """End the process by SIGTERM, or by SIGKILL if necessary, and no other one."""
        if self._child is None or self._processes is None:
            return
        self._child.end(GRACE)
        if self._child in self._processes.children:
            self._processes.children.remove(self._child)
        self._child = None
        self._socket.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the process as a crash would. Its ports stay for the next `start`."""
        self.check()
        assert self._child is not None
        assert self._processes is not None
        self._processes.kill(self._child)
        self._child = None

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def __enter__(self) -> SwitchLauncher:
        try:
            self.start(Processes())
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
