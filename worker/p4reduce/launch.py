# SPDX-License-Identifier: Apache-2.0
"""Start a switch and its controller on this host, and get what workers need to find them.

    with p4reduce.launch.start(ranks=4) as network:
        ...  # start workers with network.variables in their environment

Engines (MPI, Spark, Ray) place processes, and call this on the host of the switch. The network is a
process of its own (`p4reduce_lab.deploy`, of the extra "lab"). It watches switch and controller and
starts them again. It ends with the process that started it, however that one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from p4reduce_common.threads import new_thread

from p4reduce.checks import (
    check_flag,
    check_number,
    check_seconds,
    check_timeout,
    number_within,
)
from p4reduce.environment import LAUNCHERS, OWN
from p4reduce.errors import ConfigurationError, LaunchError
from p4reduce.inherited import keep_from_children
from p4reduce.wire.format import MAX_SLOTS, MAX_WORLD_SIZE

__all__ = ["READY_TIMEOUT", "Network", "start"]

READY_TIMEOUT = 120.0  # seconds; a network that cannot start says so at once
_END_TIMEOUT = 20.0  # seconds
_LOOK = 0.5  # seconds between two looks whether it runs
_MODULE = "p4reduce_lab.deploy"
_END = b"end\n"  # without it, the process that started a network was killed
LEASE = "P4REDUCE_LEASE"
PORTS = "P4REDUCE_PORTS"
_spare: Network | None = None


class Network:
    """A switch and its controller, or several switches, that run on this host. See `start`.

    Attributes:
        variables: the environment by which `p4reduce.init` finds them. It contains secrets: a
            token, a key, and if hosts differ a certificate with its key.
        ranks: the largest number of ranks.
        text: what was started, for people.
        pids: the processes by their names: "controller", "switch" or "switch-a", …, and
            "network", which watches the others.
    """

    def __init__(self, ranks: int = 0) -> None:
        self.ranks = ranks
        self.variables: Mapping[str, str] = {}
        self.text = ""
        self.pids: Mapping[str, int] = {}
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,  # a site's customisation of Python may write there
                    start_new_session=True,  # Ctrl-C is for this process, which ends the network
                )
        except BaseException:
            ours.close()
            raise
        self._connection = ours
        self._news: list[str] = []
        self._failure = ""
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._closing = threading.Event()
        self._reader = new_thread(self._read, "p4reduce-launch", self._reading_failed)
        self._reader.start()
        keep_from_children(self)

    def descriptors(self) -> Iterator[int]:
        """As `Holder`: a child that keeps them would keep the network."""
        yield self._connection.fileno()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request to the process; see `p4reduce_lab.deploy.supervisor`."""
        with contextlib.suppress(OSError):  # it has ended; the answer says why
            self._connection.sendall(json.dumps(request).encode() + b"\n")

    def answer(self, timeout: float = READY_TIMEOUT) -> dict[str, Any]:
        """Wait for the process's answer, and return it.

        Raises:
            ConfigurationError: it refuses the request.
            LaunchError: it has ended, or does not answer.
        """
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise LaunchError(
                f"switch and controller were not ready within {timeout:g} s"
            ) from None
        if "refused" in answer:
            raise ConfigurationError(answer["refused"])
        if "ready" in answer:
            ready = answer["ready"]
            self.variables = ready["variables"]
            self.text = ready["text"]
            self.pids = {**ready["pids"], "network": self._process.pid}
        elif "offer" not in answer:
            raise LaunchError(f"the network did not start: {self._why()}")
        return answer

    @property
    def news(self) -> tuple[str, ...]:
        """Events since the start, such as "switch ended (…): started again"."""
        return tuple(self._news)

    def check(self) -> None:
        """Raise LaunchError if the network does not run any more; the message says why."""
        if self._process.poll() is not None:
            self._reader.join(_END_TIMEOUT)
            raise LaunchError(f"the network has ended: {self._why()}")

    def when_ended(self, call: Callable[[LaunchError], object]) -> None:
        """Call a function with the error of `check`, in a thread, unless `close` is called."""
        new_thread(self._watch, "p4reduce-network", args=(call,)).start()

    def close(self) -> None:
        """End switch and controller. Another call has no effect."""
        self._closing.set()
        process = self._process
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.sendall(_END)
            self._connection.shutdown(socket.SHUT_WR)
        try:
            process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()  # the kernel ends the others with it
            process.wait()
        self._reader.join(_END_TIMEOUT)
        self._connection.close()

    def release(self) -> None:
        """Let go of the process, which ends when nobody needs it: see `job_network`."""
        self._closing.set()
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _watch(self, call: Callable[[LaunchError], object]) -> None:
        try:
            while self._process.poll() is None:
                if self._closing.wait(_LOOK):
                    return
            if self._closing.is_set():
                return  # `close` has ended it since
            self.check()
        except LaunchError as error:
            why = error
        except Exception as cause:
            why = LaunchError(f"nobody watches the network any more: {cause!r}")
            why.__cause__ = cause
        call(why)

    def _read(self) -> None:
        for line in _lines(self._connection):
            message = json.loads(line)
            if "news" in message:
                self._news.append(message["news"])
                self.pids = {**message["pids"], "network": self._process.pid}
                continue
            self._failure = message.get("failed", "")
            self._answers.put(message)
        self._answers.put({})  # it has ended
        self._process.wait()  # or it would stay as a zombie

    def _reading_failed(self, cause: BaseException) -> None:
        self._failure = f"its answers cannot be read: {cause!r}"
        self._answers.put({})

    def _why(self) -> str:
        if self._failure:
            return self._failure
        code = self._process.wait(_END_TIMEOUT)
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        return f"{how} of `python -m {_MODULE}`; its output is on standard error"


def _lines(connection: socket.socket) -> Iterator[bytes]:
    """Yield what a process says, until it ends."""
    with contextlib.suppress(OSError), connection.makefile("rb") as said:
        yield from said


def start(
    ranks: int,
    host: str = "",
    *,
    switches: int = 0,
    tree: str = "",
    unix: bool = False,
    link_rate: float = 0.0,
    first_port: int = 0,
    slots: int = 0,
    lease: float = 0.0,
    logs: str | os.PathLike[str] = "",
    captures: str | os.PathLike[str] = "",
    timeout: float = READY_TIMEOUT,
) -> Network:
    """Start switch and controller on this host, and return when they serve.

    Args:
        ranks: how many workers there will be, 1 to 4,096; each has a port of the switch.
        host: an IP address of this host that all workers reach. The controller then speaks TLS
            with certificates made for this network. "": all workers are on this host.
        switches: how many switches side by side, 1 to 16. 0: as many as keep up with this host's
            interface.
        tree: "LxR": a root above L leaves of R ranks each. "": none up to 64 ranks, else the
            flattest one.
        unix: ports are Unix sockets instead of UDP ports: faster, for this user's workers on this
            host.
        link_rate: of this host's interface, in bit/s. 0: as Linux reports it.
        first_port: the first of as many UDP ports as there are ranks and switches; the
            controller is at the TCP port of this number. 0: free ones of the range
            `P4REDUCE_PORTS`, or any.
        slots: of a job, 1 to 1,024. 0: the default.
        lease: seconds that a rank may be silent before it is lost, 0.1 to 86,400. 0: those of
            `P4REDUCE_LEASE` in this process's environment, or 10.
        logs: a directory for the logs. "": they are removed with the network.
        captures: a directory for each port's frames, as portN.pcap, with a folder per switch if
            there are several. Complete when the network has ended. "": none.
        timeout: seconds to wait.

    Raises:
        TypeError, ValueError: an argument is invalid; names it.
        ConfigurationError: the arguments contradict each other, the host is not this one, or
            `P4REDUCE_LEASE` is not a number.
        LaunchError: something is missing on this host, or does not start; says what.
    """
    check_timeout(timeout)
    check_seconds("lease", lease)
    check_number("link_rate", link_rate, "a number of bit/s is needed")
    check_flag("unix", unix)
    for argument, text in (("host", host), ("tree", tree)):
        if not isinstance(text, str):
            raise TypeError(f"{argument}={text!r}: a string is needed")
    for argument, path in (("logs", logs), ("captures", captures)):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{argument}={path!r}: a path is needed")
    settings = {
        "ranks": number_within("ranks", ranks, 1, MAX_WORLD_SIZE),
        "host": host,
        "switches": number_within("switches", switches, 0, 16),
        "tree": tree,
        "unix": bool(unix),
        "link_rate": float(link_rate),
        "first_port": number_within("first_port", first_port, 0, 65535),
        "slots": number_within("slots", slots, 0, MAX_SLOTS),
        "lease": float(lease) or lease_of_environment(),
        "logs": os.fspath(logs),
        "captures": os.fspath(captures),
        "ports": os.environ.get(PORTS, ""),
    }
    network = Network(ranks)
    try:
        network.send({"settings": settings})
        network.answer(timeout)
    except BaseException:
        network.close()
        raise
    return network


def prepare() -> None:
    """Start a process early, where this rank will probably need one: the first of its host.

    It takes a moment, in which this process imports what else a rank needs.
    """
    global _spare
    names = [launcher.local_rank_name for launcher in (*LAUNCHERS, OWN)]
    local = next((os.environ[name] for name in names if name in os.environ), "")
    if _spare is None and local == "0":
        _spare = Network()


def take_spare() -> Network | None:
    """Return the process of `prepare`, if there is one; the caller owns it then."""
    global _spare
    spare, _spare = _spare, None
    return spare


def lease_of_environment() -> float:
    """Return the seconds of `P4REDUCE_LEASE`; 0: not set. Raises ConfigurationError."""
    text = os.environ.get(LEASE) or "0"
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{LEASE}={text!r} is not a number of seconds") from None
