# SPDX-License-Identifier: Apache-2.0
"""A switch process, a controller in a thread, and ranks that attach through real ports."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from click.testing import CliRunner, Result
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce_controller.cli.command_line import cli as main_command
from p4reduce_controller.daemon import Daemon
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_controller.settings import ControllerSettings, SwitchServer
from p4reduce_controller.topology.switches import ONLY, only_switch
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from scapy.layers.l2 import Ether

_T = TypeVar("_T")
_marks = itertools.count()

DEADLINE = 120.0  # seconds; how long anything may take before a test fails
PORTS = (1, 2, 3, 4)
SWITCH_IP = "10.77.255.254"
SWITCH_MAC = "02:70:34:72:65:64"


def eventually(get: Callable[[], _T], what: str) -> _T:
    """Return the first true answer; fail when there is none in time."""
    end = time.monotonic() + DEADLINE
    while True:
        answer = get()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"still not so after {DEADLINE} s: {what}")
        time.sleep(0.01)


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """A process by its pid, as one that hangs. Threads may answer for a while after the signal."""

    def has_stopped() -> bool:
        tasks = Path(f"/proc/{process}/task").iterdir()
        return {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks} == {"T"}

    os.kill(process, signal.SIGSTOP)
    try:
        eventually(has_stopped, f"process {process} has stopped")
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class SwitchProcess:
    """`p4reduce-switch` with four ports on Unix sockets.

    `calls` are further ports, by number, and the sockets of other switches that they call at.
    """

    names_full_tables = True
    remembers_election_ids = True

    def __init__(self, directory: Path, calls: Mapping[int, Path] | None = None) -> None:
        self.directory = directory
        self._calls = dict(calls or {})
        self.address = f"unix:{directory}/p4runtime.sock"
        self._log = (directory / "switch.log").open("wb")
        self._plugged: dict[int, socket.socket] = {}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-c", "from p4reduce_switch.cli import main; main()"]
        command += ["--grpc-addr", self.address, "--ready-file", str(ready)]
        for port in PORTS:
            command += ["--port", f"{port}=unix:{self.port_path(port)}"]
        for port, path in self._calls.items():
            command += ["--port", f"{port}=unix-to:{path}"]
        process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        eventually(lambda: ready.exists() or process.poll() is not None, "the switch is up")
        if process.poll() is not None:
            raise AssertionError((self.directory / "switch.log").read_text())
        return process

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        for plugged in self._plugged.values():
            plugged.close()
        self._plugged.clear()

    def revive(self) -> None:
        """Start it again, which begins with nothing."""
        self.process = self._start()

    def port_path(self, port: int) -> Path:
        """Where a port's socket is."""
        return self.directory / f"port{port}.sock"

    def plug(self, port: int) -> socket.socket:
        """Return the one connection to a port."""
        if port not in self._plugged:
            plugged = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            plugged.settimeout(DEADLINE)
            plugged.connect(str(self.port_path(port)))
            self._plugged[port] = plugged
        return self._plugged[port]

    def drain(self) -> None:
        """Throw away what waits at the ports."""
        for plugged in self._plugged.values():
            plugged.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while plugged.recv(2048):
                    pass
            plugged.settimeout(DEADLINE)

    def close(self) -> None:
        """End the process."""
        for plugged in self._plugged.values():
            plugged.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Calls:
    """Shorthands for calls to a controller."""

    client: ControlClient

    def call(self, method: str, request: Any = None, **fields: Any) -> Any:
        """Call a method of the control API by name."""
        message = request or getattr(pb, f"{method}Request")(**fields)
        return self.client.call(getattr(self.client.stub, method), message, timeout=DEADLINE)

    def table(self, name: str) -> list[pb.TableEntry]:
        """Return a table's entries."""
        return list(self.call("GetTable", name=name).entries)

    def count(self, outcome: str, switch: str = "") -> int:
        """Return how many frames had an outcome."""
        counts = self.call("GetCounters", switch=switch).counts
        return next(int(count.frames) for count in counts if count.name == outcome)

    def job(self, name: str) -> pb.Job:
        """Return the newest job of that name."""
        jobs: list[pb.Job] = [job for job in self.call("ListJobs").jobs if job.name == name]
        return max(jobs, key=lambda job: job.incarnation)

    def rank(self, switch: SwitchProcess, rank: int, size: int, **options: Any) -> Rank:
        """Join a job."""
        return Rank(self, switch, rank, size, **options)

    def running(self, switch: SwitchProcess, size: int, **options: Any) -> list[Rank]:
        """Join and attach all ranks of a job, and wait until it runs."""
        ranks = [self.rank(switch, rank, size, **options) for rank in range(size)]
        for rank in ranks:
            rank.hello()
        for rank in ranks:
            rank.await_ready()
        return ranks

    def events(self, recent: int = 1000) -> list[str]:
        """Return the kinds of what has happened."""
        stream = self.client.stub.WatchEvents(pb.WatchEventsRequest(recent=recent))
        # An event that the test makes tells where the past ends.
        mark = f"mark{next(_marks)}"
        self.call("CreateJob", name=mark, world_size=1, slots=1)
        kinds = []
        for event in stream:
            if event.job == mark:
                break
            kinds.append(event.kind)
        stream.cancel()
        self.call("DeleteJob", name=mark)
        return kinds


class RunningController(Calls):
    """A controller in a thread, as `serve` runs it in a process."""

    def __init__(self, switch: str, directory: Path, **changes: Any) -> None:
        device_id, ports = changes.pop("device_id", 1), changes.pop("ports", PORTS)
        stations = tuple((parse_mac(mac), at) for mac, at in changes.pop("stations", ()))
        settings: dict[str, Any] = {
            "topology": only_switch(parse_ip(SWITCH_IP), parse_mac(SWITCH_MAC), ports, stations),
            "servers": {ONLY: SwitchServer(switch, device_id)},
            "election_id": 1,
            "listen": f"unix:{directory}/controller/controller.sock",
            "lease": 30.0,
            "state_directory": directory / "state",
            "connect_timeout": DEADLINE,
        } | changes
        self.daemon = Daemon(ControllerSettings(**settings))
        self.address = ""
        self._started = threading.Event()
        self._stop: Callable[[], None] | None = None
        self._crash: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="controller")
        self._thread.start()
        assert self._started.wait(DEADLINE)
        if self._error is not None:
            raise self._error
        self.client = ControlClient(self.address, changes.get("tls"))

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # reported by the test's thread
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        stop, loop, task = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._crash = lambda: loop.call_soon_threadsafe(task.cancel)  # type: ignore[assignment]
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)  # type: ignore[assignment]

        def ready(address: str) -> None:
            self.address = address
            self._started.set()

        await self.daemon.run(stop, ready)

    def crash(self) -> None:
        """Stop in the midst of everything: nobody is told, nothing is taken off the switch."""
        assert self._crash is not None
        self._crash()
        self._thread.join(timeout=DEADLINE)
        self.client.close()
        assert isinstance(self._error, asyncio.CancelledError)
        self._error = None

    def stop(self) -> None:
        """Stop as for SIGTERM."""
        if self._stop is not None and self._thread.is_alive():
            self._stop()
        self._thread.join(timeout=DEADLINE)
        self.client.close()
        assert not self._thread.is_alive(), "the controller does not stop"
        if self._error is not None:
            raise self._error

    def client_now(self) -> SwitchClient:
        """Return the session with the switch."""
        return self.daemon.taken[ONLY].fabric.client

    def break_session(self) -> None:
        """End the session, and not tell those who use it."""
        self.client_now().close()


@dataclass
class Rank:
    """A worker, as far as the controller knows one."""

    controller: Calls
    switch: SwitchProcess
    rank: int
    size: int
    job: str = "train"
    slots: int = 0
    port: int = 0
    mac: str = ""
    at: str = ""  # the switch's name, if it says that
    joined: pb.JoinReply = field(init=False)
    ready: pb.Ready = field(init=False, default_factory=pb.Ready)

    def __post_init__(self) -> None:
        self.port = self.port or self.rank % len(PORTS) + 1
        self.joined = self.controller.call(
            "Join",
            job=self.job,
            rank=self.rank,
            world_size=self.size,
            slots=self.slots,
            host=f"host{self.rank}",
            pid=100 + self.rank,
            own_address=bool(self.mac),
            switch=self.at,
        )

    @property
    def key(self) -> dict[str, int]:
        """What proves who this is."""
        return {
            "incarnation": self.joined.incarnation,
            "rank": self.rank,
            "nonce": self.joined.nonce,
        }

    def frame(self, payload: bytes = b"", **fields: Any) -> bytes:
        """Build a frame from this rank to the switch."""
        fields = {"job": self.joined.incarnation, "rank": self.rank} | fields
        source = wire.Endpoint(
            self.mac or self.joined.suggested_mac, self.joined.suggested_ip, 40000 + self.rank
        )
        told = self.ready if self.ready.switch_ip else self.joined
        switch = wire.Endpoint(told.switch_mac, told.switch_ip, wire.AGGREGATION_PORT)
        return wire.template(source, switch, Aggregation(**fields), payload)

    def hello_frame(self, nonce: int | None = None) -> bytes:
        """Build a HELLO."""
        return self.frame(
            kind=wire.FrameKind.HELLO,
            contributors=self.joined.nonce if nonce is None else nonce,
            block=0,
            next_block=0,
        )

    def send(self, frame: bytes, port: int | None = None) -> None:
        """Send a frame into the rank's port, or another one."""
        self.switch.plug(port or self.port).send(frame)

    def receive(self) -> bytes:
        """Receive a frame from the rank's port."""
        return self.switch.plug(self.port).recv(2048)

    def hello(self, **options: Any) -> None:
        """Attach."""
        self.send(self.hello_frame(), **options)

    def await_ready(self, timeout: float = DEADLINE) -> pb.Ready:
        """Wait until the job runs."""
        self.ready = self.controller.call(
            "AwaitReady", pb.AwaitReadyRequest(timeout=timeout, **self.key)
        )
        return self.ready

    def begin_await_ready(self, timeout: float = DEADLINE) -> Any:
        """Begin to wait; returns gRPC's future."""
        stub = self.controller.client.stub
        request = pb.AwaitReadyRequest(timeout=timeout, **self.key)
        return stub.AwaitReady.future(request, timeout=timeout + DEADLINE)

    def heartbeat(self, **fields: Any) -> pb.HeartbeatReply:
        """Renew the lease."""
        return self.controller.call(  # type: ignore[no-any-return]
            "Heartbeat", **self.key, **fields
        )

    def begin_reform(self, timeout: float = DEADLINE, **fields: Any) -> Any:
        """Begin to ask for a place in a new job; returns gRPC's future."""
        request = pb.ReformRequest(timeout=timeout, **self.key, **fields)
        stub = self.controller.client.stub
        return stub.Reform.future(request, timeout=timeout + DEADLINE)

    def reformed(self, reply: pb.ReformReply) -> Rank:
        """Return this rank as it continues."""
        again = copy.copy(self)
        again.rank, again.size, again.joined = reply.rank, reply.world_size, reply.joined
        again.ready = pb.Ready()
        return again

    def leave(self) -> None:
        """Leave."""
        self.controller.call("Leave", **self.key)


def refused(code: grpc.StatusCode, call: Callable[[], object]) -> str:
    """Expect that status; return its message."""
    with pytest.raises(ControlError) as caught:
        call()
    assert caught.value.code is code, caught.value
    return str(caught.value)


def contribute(rank: Rank, number: int, round_: int = 1) -> None:
    """Send a block whose lanes are all `number`."""
    payload = number.to_bytes(4, "big") * 256
    rank.send(rank.frame(payload, flags=wire.Flag.PAYLOAD, slot=0, round=round_, block=0, tag=1))


def result(rank: Rank) -> Aggregation:
    """Receive a result."""
    frame = Ether(rank.receive())
    assert Aggregation in frame, frame.show(dump=True)
    assert frame[Aggregation].kind == wire.FrameKind.RESULT, frame.show(dump=True)
    return frame[Aggregation]


def failed(ranks: list[Rank]) -> pb.HeartbeatReply:
    """Renew the leases of those ranks until their job has failed."""

    def all_failed() -> list[pb.HeartbeatReply]:
        replies = [rank.heartbeat() for rank in ranks]
        return replies if all(reply.state == pb.FAILED for reply in replies) else []

    return eventually(all_failed, "the job failed")[0]


def reform(ranks: list[Rank], **fields: int) -> list[Rank]:
    """Ask to continue, and return the ranks in the new job, which runs."""
    asked = [rank.begin_reform(**fields) for rank in ranks]
    again = [rank.reformed(each.result()) for rank, each in zip(ranks, asked, strict=True)]
    for rank in again:
        rank.hello()
    return again


class ServingProcess(Calls):
    """A controller as a process."""

    def __init__(self, switch: SwitchProcess, directory: Path) -> None:
        address = f"unix:{directory}/controller/c.sock"
        command = [sys.executable, "-m", "p4reduce_controller", "serve", "--listen", address]
        command += ["--switch", switch.address, "--ports", "1-4", "--lease", "30"]
        command += ["--state-dir", str(directory / "state")]
        self.log = directory / "controller.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"ready"), self.log.read_text()
        self.client = ControlClient(address)

    def end(self, number: signal.Signals) -> None:
        """End it by a signal, if it has not ended yet."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(timeout=DEADLINE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def cli_process(
    *arguments: str, log: Path, output: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run `p4reduce-controller`, and end it if it is still there."""
    command = [sys.executable, "-m", "p4reduce_controller", *arguments]
    with contextlib.ExitStack() as files:
        errors = files.enter_context(log.open("a"))
        to = files.enter_context(output.open("w")) if output else subprocess.PIPE
        process = subprocess.Popen(command, stdout=to, stderr=errors, text=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def cli(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `p4reduce-controller` to its end, with what is typed at its prompts."""
    command = [sys.executable, "-m", "p4reduce_controller", *arguments]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def cli_here(*arguments: str) -> Result:
    """Run `p4reduce-controller` in this process, which takes a second less."""
    return CliRunner().invoke(main_command, arguments)


def cli_json(*arguments: str) -> Any:
    """Run `p4reduce-controller` in this process and return what it printed."""
    done = cli_here(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
