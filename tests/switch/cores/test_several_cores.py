# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch --cores`: its processes, and P4Runtime of all of them at one address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.cores.directory import socket_directory, socket_path
from p4rt_client import INSERT, PROGRAMS, BatchError, Builder, Client, config, exact
from scapy.utils import rdpcap
from switch_peer import Peer, ethernet

SECONDS = 120.0
COMPILED = Path(__file__).resolve().parents[3] / "p4src" / "compiled"
OTHER = "p4rt_features"


class Cores:
    """A switch process with two cores."""

    def __init__(self, directory: Path, *arguments: str, name: str = "") -> None:
        self.directory = directory
        self._ready = directory / f"{name}ready"
        self.log = directory / f"{name}log"
        command = [sys.executable, "-m", "p4reduce_switch", "--cores", "2"]
        command += ["--grpc-addr", f"unix:{directory}/{name}s.sock"]
        command += ["--ready-file", str(self._ready)]
        with self.log.open("w") as log:
            self.popen = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)

    def wait_ready(self) -> dict[str, Any]:
        wait_for(lambda: self._ready.exists() or self.popen.poll() is not None)
        assert self._ready.exists(), self.log.read_text()
        facts: dict[str, Any] = json.loads(self._ready.read_text())
        return facts

    def finish(self) -> int:
        return self.popen.wait(SECONDS)

    def stop(self) -> int:
        self.popen.terminate()
        return self.finish()


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"still not so after {SECONDS} s"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cores]]:
    started: list[Cores] = []

    def run(*arguments: str) -> Cores:
        # Short: a Unix socket's path has at most 107 bytes.
        started.append(Cores(tmp_path_factory.mktemp("c"), *arguments))
        return started[-1]

    yield run
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()


def port(directory: Path) -> list[str]:
    return ["--port", f"1=unix:{directory}/p1.sock"]


def p4reduce_config() -> Any:
    info = p4info_pb2.P4Info()
    text_format.Parse((COMPILED / "p4reduce.p4info.txtpb").read_text(), info)
    program = (COMPILED / "p4reduce.json").read_bytes()
    return p4rt.ForwardingPipelineConfig(p4info=info, p4_device_config=program)


def status(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    error: Any = raised.value
    return error.code(), error.details()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_each_core_is_a_device_at_the_one_address(start: Any, tmp_path: Path) -> None:
    switch = start("--port", f"1=unix:{tmp_path}/p1.sock", "--port", "2=udp:127.0.0.1:0")
    facts = switch.wait_ready()
    assert facts["pid"] == switch.popen.pid
    assert [core["device_id"] for core in facts["cores"]] == [1, 2]
    assert facts["ports"]["1"] == f"1=unix:{tmp_path}/p1.sock"
    assert int(facts["ports"]["2"].rpartition(":")[2]) > 0
    assert {path.name for path in tmp_path.iterdir()} == {"p1.sock", "p1.sock.core1"}

    options = (("grpc.max_metadata_size", 1 << 20),)
    clients = [Client(facts["grpc_addr"], device_id=n, options=options) for n in (1, 2)]
    _, call = clients[0].stub.Capabilities.with_call(p4rt.CapabilitiesRequest(), timeout=SECONDS)
    told = dict(call.trailing_metadata())
    assert told["p4reduce-devices"] == "1,2"
    assert told["p4reduce-ports"] == "1,2"
    for client in clients:
        assert client.become_primary().device_id == client.device_id
        client.set_config(p4reduce_config())
        assert client.get_config().config.p4info == p4reduce_config().p4info

    # Each has tables of its own, and errors of a batch come with their details.
    build = Builder_(p4reduce_config().p4info)
    entry = build.entry("own_address", [exact(1, 0x0A4DFFFE)], ("is_own", 0x027034726564))
    clients[1].write((INSERT, entry))
    with pytest.raises(BatchError) as refused:
        clients[1].write(*[(INSERT, entry)] * 1000)
    assert refused.value.codes == ["ALREADY_EXISTS"] * 1000
    whole = p4rt.TableEntry(table_id=entry.table_id)
    assert len(clients[1].read(whole)) == 1
    assert clients[0].read(whole) == []

    request = p4rt.CapabilitiesRequest()
    if "device_id" in request.DESCRIPTOR.fields_by_name:
        request.device_id = 2
        clients[0].stub.Capabilities(request, timeout=SECONDS)
        request.device_id = 3
        code, _ = status(lambda: clients[0].stub.Capabilities(request, timeout=SECONDS))
        assert code is grpc.StatusCode.NOT_FOUND
    stranger = Client(facts["grpc_addr"], device_id=3)
    assert status(lambda: stranger.get_config())[0] is grpc.StatusCode.NOT_FOUND
    stranger.arbitrate()
    assert stranger.next().code() is grpc.StatusCode.NOT_FOUND
    for client in (*clients, stranger):
        client.close()
    assert switch.stop() == 0
    assert list(tmp_path.iterdir()) == []
    assert {path.name for path in switch.directory.iterdir()} == {"log"}
    assert switch.log.read_text().endswith("p4reduce-switch stopped\n")


class Builder_(Builder):  # noqa: N801
    """Of a P4Info instead of a program of the tests."""

    def __init__(self, info: Any) -> None:
        self.p4info = info
        objects = (*info.tables, *info.actions)
        self._ids = {item.preamble.name: item.preamble.id for item in objects}
        self._tables = {table.preamble.name: table for table in info.tables}
        self._actions = {action.preamble.name: action for action in info.actions}


def test_another_program_keeps_one_core(start: Any, tmp_path: Path) -> None:
    switch = start(*port(tmp_path))
    address = switch.wait_ready()["grpc_addr"]
    first, second = (Client(address, device_id=device) for device in (1, 2))
    first.become_primary()
    first.set_config(config(OTHER))
    assert "the program keeps one of the 2 cores" in switch.log.read_text()
    second.become_primary()
    code, text = status(lambda: second.set_config(config(OTHER)))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "core 1 of 2" in text
    assert "@several_cores" in text
    assert "without --cores" in text
    first.close()
    second.close()


def test_another_program_of_the_command_line_gets_one_core(start: Any, tmp_path: Path) -> None:
    files = [PROGRAMS / f"{OTHER}.json", PROGRAMS / f"{OTHER}.p4info.txtpb"]
    switch = start(*port(tmp_path), "--pipeline", str(files[0]), "--p4info", str(files[1]))
    facts = switch.wait_ready()
    assert "cores" not in facts
    assert [path.name for path in tmp_path.iterdir()] == ["p1.sock"]
    log = switch.log.read_text()
    assert "is for one core, so there is one and not 2" in log
    assert switch.stop() == 0


@pytest.mark.long
def test_a_core_that_ends_is_started_again(start: Any, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    switch = start(*port(tmp_path), "--port", "2=udp:127.0.0.1:0", "--metrics-port", "0")
    facts = switch.wait_ready()

    def up() -> list[str]:
        url = f"http://127.0.0.1:{facts['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=SECONDS) as page:
            lines = page.read().decode().splitlines()
        assert any(line.startswith("p4reduce_dataplane_port_rx_frames_total") for line in lines)
        return [line for line in lines if line.startswith("p4reduce_dataplane_core_up{")]

    all_up = [f'p4reduce_dataplane_core_up{{core="{core}"}} 1.0' for core in range(2)]
    assert up() == all_up
    first, second = (Client(facts["grpc_addr"], device_id=device) for device in (1, 2))
    first.become_primary()
    second.become_primary()
    os.kill(facts["cores"][1]["pid"], signal.SIGKILL)
    ended = second.next()
    assert ended.code() is grpc.StatusCode.UNAVAILABLE
    assert "core 1 (device 2) does not answer" in ended.details()
    first.set_config(p4reduce_config())  # the other one continues
    wait_for(lambda: "core 1 (device 2, pid" in switch.log.read_text())
    wait_for(lambda: up() == all_up)
    again = Client(facts["grpc_addr"], device_id=2)
    again.become_primary()
    again.set_config(p4reduce_config())
    for client in (first, second, again):
        client.close()
    assert switch.stop() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_core_outlives_the_switch(start: Any, tmp_path: Path, number: signal.Signals) -> None:
    switch = start(*port(tmp_path))
    pids = [core["pid"] for core in switch.wait_ready()["cores"]]
    switch.popen.send_signal(number)
    assert switch.finish() == (0 if number is signal.SIGINT else -number)
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.long
def test_the_next_switch_removes_what_a_killed_one_has_left(start: Any, tmp_path: Path) -> None:
    killed = start(*port(tmp_path))
    cores = [core["pid"] for core in killed.wait_ready()["cores"]]
    killed.popen.kill()
    killed.finish()
    wait_for(lambda: not any(map(is_alive, cores)))
    [left] = killed.directory.glob("cores-*")
    assert {path.name for path in left.iterdir()} == {"core0.sock", "core1.sock"}
    # Not what somebody else has there, be it called alike.
    mine = killed.directory / "cores-12345678"
    mine.mkdir()
    (mine / "core0.sock").write_text("no socket")
    with another(killed, *port(tmp_path)) as switch:
        own = set(switch.directory.glob("cores-*"))
        assert left not in own
        assert len(own) == 2
        with another(killed, "--port", "2=udp:127.0.0.1:0", number=2):
            assert set(switch.directory.glob("cores-*")) > own, "one that runs was taken for left"
    assert list(switch.directory.glob("cores-*")) == [mine]


@contextmanager
def another(other: Cores, *arguments: str, number: int = 1) -> Iterator[Cores]:
    """Another switch, with its files in the same directory; stopped in the end."""
    switch = Cores(other.directory, *arguments, name=f"next{number}")
    try:
        switch.wait_ready()
        yield switch
        assert switch.stop() == 0
    finally:
        if switch.popen.poll() is None:
            switch.popen.kill()
            switch.popen.wait()


@pytest.mark.long
def test_each_core_captures_its_own_frames(start: Any, tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    switch = start(*port(tmp_path), "--pcap", str(captures))
    switch.wait_ready()
    for core, name in enumerate(("p1.sock", "p1.sock.core1")):
        with closing(Peer(tmp_path / name)) as peer:
            for number in range(core + 1):
                peer.send(ethernet(bytes([core, number]) * 30))
    # A core takes what was sent before it ends.
    assert switch.stop() == 0
    for core in range(2):
        [file] = (captures / f"core{core}").glob("*.pcap")
        frames = [bytes(packet)[14:16] for packet in rdpcap(str(file))]
        assert frames == [bytes([core, number]) for number in range(core + 1)]


def test_a_core_that_cannot_start_ends_the_switch(start: Any, tmp_path: Path) -> None:
    (tmp_path / "p1.sock.core1").write_text("in the way")
    switch = start(*port(tmp_path))
    assert switch.finish() == 1
    log = switch.log.read_text()
    assert "p1.sock.core1" in log
    assert "core 1 did not start, so there is no switch" in log
    assert "Traceback" not in log
    assert [path.name for path in tmp_path.iterdir()] == ["p1.sock.core1"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--port", "1=eth0"], "'1=eth0' cannot be of several cores"),
        (["--debug", "/tmp/x.sock"], "--debug holds one program at a time"),
        (["--cores", "17"], "17 is not in the range 1<=x<=16"),
    ],
)
def test_what_cannot_be_is_refused(start: Any, arguments: list[str], why: str) -> None:
    switch = start(*arguments)
    assert switch.finish() == 2
    assert why in switch.log.read_text()


def test_a_long_path_is_no_place_for_the_cores_sockets(tmp_path: Path) -> None:
    """Such as a $TMPDIR that the user knows of, where these names are not known."""
    place = tmp_path / ("x" * 100)
    place.mkdir()
    for beside, parent in ((tmp_path, tmp_path), (place, Path("/tmp"))):
        with socket_directory(beside) as directory:
            assert directory.parent == parent
            with closing(socket.socket(socket.AF_UNIX)) as listener:
                listener.bind(str(socket_path(directory, 15)))
        assert not directory.exists()
