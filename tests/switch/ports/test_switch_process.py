# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch` as its users start it: a process of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_common.grpc_channels import open_channel
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import runtime
from p4reduce_switch.cli import cli
from p4rt_client import INSERT, PROGRAMS, Builder, Client, config, exact, ternary
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap
from switch_peer import Peer, ethernet, eventually

READY_S = 120.0
STOP_S = 120.0


class Process:
    """A switch process, and what it said."""

    def __init__(self, directory: Path, *arguments: str, **options: Any) -> None:
        self.ready_file = directory / "ready.json"
        self.popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "p4reduce_switch",
                "--grpc-addr",
                "127.0.0.1:0",
                "--ready-file",
                str(self.ready_file),
                *arguments,
            ],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )
        self.out = self.err = ""

    def wait_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + READY_S
        while not self.ready_file.exists():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"not ready within {READY_S} s: {self.out} {self.err}")
            time.sleep(0.01)
        state: dict[str, Any] = json.loads(self.ready_file.read_text())
        return state

    def finish(self, timeout: float = READY_S) -> int:
        """The exit code, once the process has ended by itself."""
        self.out, self.err = self.popen.communicate(timeout=timeout)
        return self.popen.returncode

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            return self.finish(STOP_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.communicate()
            raise


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts switches that choose their engine themselves."""
    started: list[Process] = []

    def run(*arguments: str, **options: Any) -> Process:
        started.append(Process(tmp_path, *arguments, **options))
        return started[-1]

    yield run
    for process in started:
        if process.popen.poll() is None:
            process.stop(signal.SIGKILL)


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        try:
            runtime()
        except NativeUnavailableError as error:
            pytest.skip(str(error))
    return str(request.param)


def sockets(directory: Path) -> list[str]:
    return [argument for n in (1, 2) for argument in ("--port", f"{n}=unix:{directory}/p{n}.sock")]


def plug(directory: Path, number: int) -> Peer:
    return Peer(directory / f"p{number}.sock")


def test_life_of_a_switch(start: Any, tmp_path: Path, engine: str) -> None:
    dump_c = tmp_path / "program.c"
    process = start(
        *sockets(tmp_path),
        "--pcap",
        str(tmp_path / "cap"),
        "--engine",
        engine,
        "--dump-c",
        str(dump_c),
    )
    ready = process.wait_ready()
    assert ready["pid"] == process.popen.pid
    assert ready["device_id"] == 1
    assert ready["ports"] == {str(n): f"{n}=unix:{tmp_path}/p{n}.sock" for n in (1, 2)}

    client = Client(ready["grpc_addr"])
    client.become_primary()
    client.set_config(config("p4rt_features"))
    build = Builder("p4rt_features")
    client.write(
        (
            INSERT,
            build.entry("ingress.exact_table", [exact(1, 2), exact(2, 1)], ("ingress.forward", 2)),
        )
    )
    left, right = plug(tmp_path, 1), plug(tmp_path, 2)
    frame = ethernet(b"hello", dst="00:00:00:00:00:02")
    # The switch takes a peer in its own time; before that the port is down.
    received = b""
    right.socket.settimeout(0.2)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        left.send(frame)
        try:
            received = right.receive()
        except TimeoutError:
            continue
        break
    assert received == frame
    assert dump_c.exists() == (engine == "native")
    if engine == "native":
        assert "p4r_program_process" in dump_c.read_text()

    began = time.monotonic()
    assert process.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < STOP_S
    ready_line, summary = process.out.splitlines()
    assert ready_line == (
        f"p4reduce-switch ready: P4Runtime on {ready['grpc_addr']}, device 1, ports "
        f"1=unix:{tmp_path}/p1.sock, 2=unix:{tmp_path}/p2.sock, CPU port 255"
    )
    assert summary.startswith("p4reduce-switch stopped: ")
    assert "port 1: rx_frames=" in summary
    assert not list(tmp_path.glob("*.sock"))
    assert not process.ready_file.exists()
    assert isinstance(client.received.get(timeout=STOP_S), grpc.RpcError)  # told that it is over
    captured = rdpcap(str(tmp_path / "cap" / "port2.pcap"))
    assert all(isinstance(packet, Ether) and bytes(packet) == frame for packet in captured)
    assert len(captured) >= 1
    for item in (client, left, right):
        item.close()


def test_a_preloaded_pipeline_works_without_a_controller(
    start: Any, tmp_path: Path, engine: str
) -> None:
    process = start(
        *sockets(tmp_path),
        "--engine",
        engine,
        "--pipeline",
        str(PROGRAMS / "p4rt_features.json"),
        "--p4info",
        str(PROGRAMS / "p4rt_features.p4info.txtpb"),
        "--device-id",
        "7",
    )
    ready = process.wait_ready()
    client = Client(ready["grpc_addr"], device_id=7)
    assert client.get_config().config.p4info == Builder("p4rt_features").p4info
    left = plug(tmp_path, 1)
    left.send(ethernet(bytes(46)))
    counter = p4rt.CounterEntry(counter_id=Builder("p4rt_features").id("ingress.by_port"))
    counter.index.index = 1
    eventually(lambda: client.read(counter)[0].data.byte_count == 60, "count of the frame")
    client.close()
    left.close()
    assert process.stop() == 0


def test_a_preloaded_pipeline_with_its_entries(start: Any, tmp_path: Path) -> None:
    build = Builder("p4rt_features")
    entries = [
        build.entry("ingress.const_table", [ternary(1, value, mask)], ("ingress.note", n), priority)
        for value, mask, n, priority in ((0x88B5, 0xFFFF, 5, 90), (0x8800, 0xFF00, 6, 30))
    ]
    for entry in entries:
        entry.is_const = True
    request = p4rt.WriteRequest(
        updates=[p4rt.Update(type=INSERT, entity={"table_entry": entry}) for entry in entries]
    )
    file = tmp_path / "entries.txtpb"
    file.write_text(text_format.MessageToString(request))
    program = [
        "--pipeline",
        str(PROGRAMS / "p4rt_features.json"),
        "--p4info",
        str(PROGRAMS / "p4rt_features.p4info.txtpb"),
    ]
    process = start(*program, "--entries", str(file))
    client = Client(process.wait_ready()["grpc_addr"])
    assert client.read(build.entry("ingress.const_table")) == entries
    client.close()
    assert process.stop() == 0

    file.write_text("nothing")
    refused = start(*program, "--entries", str(file))
    assert refused.finish() == 1
    assert "the entries file is not a WriteRequest in text form" in refused.err
    alone = start("--entries", str(file))
    assert alone.finish() == 2
    assert "--entries needs --pipeline and --p4info" in alone.err


def test_grpc_on_a_unix_socket(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "p4rt.sock"
    process = start("--grpc-addr", f"unix:{path}")
    ready = process.wait_ready()
    assert ready["grpc_addr"] == f"unix:{path}"
    assert path.stat().st_mode & 0o077 == 0, "others may connect"
    client = Client(ready["grpc_addr"])
    client.become_primary()
    client.close()
    # A second switch there is refused, and does not disturb the first.
    second = start("--grpc-addr", f"unix:{path}")
    assert second.finish() == 1
    assert "another process listens there" in second.err
    client = Client(ready["grpc_addr"])
    client.become_primary(election_id=2)
    client.close()
    assert process.stop() == 0
    assert not path.exists()


def test_a_crashed_switch_leaves_nothing_in_the_way(start: Any, tmp_path: Path) -> None:
    arguments = (*sockets(tmp_path), "--grpc-addr", f"unix:{tmp_path}/p4rt.sock")
    crashed = start(*arguments)
    crashed.wait_ready()
    crashed.popen.kill()
    crashed.popen.communicate(timeout=STOP_S)
    crashed.ready_file.unlink()
    assert (tmp_path / "p1.sock").exists()
    process = start(*arguments)
    process.wait_ready()
    plug(tmp_path, 1).close()
    assert process.stop() == 0


def test_ready_fd(start: Any) -> None:
    read_end, write_end = os.pipe()
    process = start("--ready-fd", str(write_end), pass_fds=[write_end])
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        state = json.loads(stream.read())  # ends as the switch closes it
    assert state["pid"] == process.popen.pid
    assert process.stop() == 0


def test_a_tcp_port_in_use(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        process = start("--grpc-addr", address)
        assert process.finish() == 1
    assert f"cannot listen on {address}: Address already in use" in process.err
    assert "Traceback" not in process.err


def test_two_switches_do_not_share_a_tcp_port(start: Any) -> None:
    first = start()
    address = first.wait_ready()["grpc_addr"]
    first.ready_file.unlink()
    second = start("--grpc-addr", address)
    assert second.finish() == 1
    assert f"cannot listen on {address}" in second.err
    assert first.stop() == 0


def test_a_port_in_use(start: Any, tmp_path: Path) -> None:
    first = start(*sockets(tmp_path))
    first.wait_ready()
    second = start("--port", f"5=unix:{tmp_path}/p1.sock")
    assert second.finish() == 1
    assert f"port 5=unix:{tmp_path}/p1.sock: another process listens there" in second.err
    plug(tmp_path, 1).close()
    assert first.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "1"], "NUMBER=INTERFACE"),
        (["--port", "511=unix:x"], "0 to 510"),
        (["--port", "1=unix:a", "--port", "1=unix:b"], "collide"),
        (["--port", "1=unix:a", "--port", "2=unix:a"], "collide"),
        (["--port", "255=unix:a"], "is the CPU port"),
        (["--cpu-port", "511"], "neither 'none' nor within 0 to 510"),
        (["--grpc-addr", "nowhere"], "HOST:PORT"),
        (["--grpc-addr", "127.0.0.1:99999"], "0 to 65535"),
        (["--grpc-addr", "::1:9559"], "[::1]:9559"),
        (["--grpc-addr", "0.0.0.0:0"], "add --tls-cert, --tls-key and --tls-ca"),
        (["--grpc-addr", "[::]:0"], "add --tls-cert, --tls-key and --tls-ca"),
        (["--grpc-addr", "0.0.0.0:0", "--tls-cert", "a.pem"], "only go together"),
        (["--pipeline", str(PROGRAMS / "p4rt_features.json")], "only go together"),
        (["--pipeline", "missing.json", "--p4info", "missing"], "does not exist"),
        (["--device-id", "0"], "device-id"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(cli, ["--grpc-addr", "127.0.0.1:0", *arguments])
    assert done.exit_code == 2
    assert complaint in done.output


def test_a_pipeline_that_cannot_be_loaded(start: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    p4info = str(PROGRAMS / "p4rt_features.p4info.txtpb")
    process = start("--pipeline", str(broken), "--p4info", p4info, *sockets(tmp_path))
    assert process.finish() == 1
    assert f"{broken}: p4_device_config: " in process.err
    assert "Traceback" not in process.err
    assert not list(tmp_path.glob("*.sock"))

    text = tmp_path / "text"
    text.write_text("nonsense {")
    process = start("--pipeline", str(PROGRAMS / "p4rt_features.json"), "--p4info", str(text))
    assert process.finish() == 1
    assert "is not a P4Info in text form" in process.err


def test_a_pipeline_that_is_nested_too_deeply(start: Any, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    p4info = str(PROGRAMS / "p4rt_features.p4info.txtpb")
    process = start("--pipeline", str(deep), "--p4info", p4info, *sockets(tmp_path))
    assert process.finish() == 1
    assert "nested too deeply" in process.err
    assert "Traceback" not in process.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "1=unix:DIR/p1.sock"], "port 1=unix:DIR/p1.sock: there is no directory DIR"),
        (["--grpc-addr", "unix:DIR/s"], "cannot listen on unix:DIR/s: there is no directory DIR"),
        (["--dump-c", "DIR/out.c"], "--dump-c: DIR/out.c: No such file or directory"),
        (["--ready-file", "DIR/ready"], "--ready-file: DIR/.ready."),
        (["--dump-c", f"DIR{'x' * 300}"], f"DIR{'x' * 300}: File name too long"),
        (["--ready-file", f"DIR{'x' * 300}"], ": File name too long"),
    ],
)
def test_missing_directories_and_impossible_names_are_refused_before_the_switch_is_ready(
    start: Any, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    missing = tmp_path / "misspelt"
    process = start(*(argument.replace("DIR", str(missing)) for argument in arguments))
    assert process.finish() == 1
    assert complaint.replace("DIR", str(missing)) in process.err
    assert "Traceback" not in process.err
    assert process.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["auto", "native", "python"])
def test_without_machine_code_there_is_no_switch(start: Any, tmp_path: Path, engine: str) -> None:
    nothing = {"CC": "no-such-compiler", "P4REDUCE_CACHE_DIR": str(tmp_path / "empty")}
    process = start(*sockets(tmp_path), "--engine", engine, env={**os.environ, **nothing})
    assert process.finish() == 1
    reason = "runtime has to be compiled, and CC=no-such-compiler names no program"
    assert f"the switch's ports are machine code: {reason}" in process.err
    assert "Traceback" not in process.err
    assert not list(tmp_path.glob("*.sock"))


def test_an_interface_that_does_not_exist(start: Any) -> None:
    process = start("--port", "1=nosuchif0")
    assert process.finish() == 1
    assert "port 1=nosuchif0: " in process.err


def test_without_descriptors_it_waits_and_says_so_once(
    start: Any, engine: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = start(*sockets(tmp_path), "--engine", engine, stderr=file)
    ready = process.wait_ready()
    files = Path(f"/proc/{ready['pid']}/fd")
    limit = max(int(one.name) for one in files.iterdir()) + 4
    resource.prlimit(ready["pid"], resource.RLIMIT_NOFILE, (limit, limit))
    host, port = ready["grpc_addr"].rsplit(":", 1)
    taken = [socket.create_connection((host, int(port))) for _ in range(2 * limit)]
    eventually(lambda: len(list(files.iterdir())) >= limit, "the descriptors' end")
    peer = plug(tmp_path, 1)
    eventually(lambda: "cannot accept a peer" in log.read_text(), "the warning")
    before = process_seconds(ready["pid"])
    time.sleep(2.5)  # it looks again once a second, and does not turn in between
    assert process_seconds(ready["pid"]) - before < 1.5
    for one in taken:
        one.close()
    up = f"port 1=unix:{tmp_path}/p1.sock is up"
    eventually(lambda: up in log.read_text(), "taking the peer")
    peer.close()
    assert process.stop() == 0
    text = log.read_text()
    assert text.count("cannot accept a peer: Too many open files; it waits") == 1
    assert len(text.splitlines()) < 20, text


def process_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_requests_that_are_no_messages_cost_a_line_and_not_a_traceback_each(start: Any) -> None:
    process = start()
    channel = open_channel(process.wait_ready()["grpc_addr"])
    for method in ("Write", "Read", "SetForwardingPipelineConfig") * 20:
        call = channel.unary_unary if method != "Read" else channel.unary_stream
        with pytest.raises(grpc.RpcError):
            list(call(f"/p4.v1.P4Runtime/{method}")(b"\xff" * 9, timeout=READY_S))
    channel.close()
    assert process.stop() == 0
    assert "Traceback" not in process.err
    assert process.err.count("cannot be decoded") == 1
    assert len(process.err.splitlines()) < 10


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="these tests run after nohup"
)
def test_it_ends_in_order_when_its_terminal_closes(start: Any, tmp_path: Path) -> None:
    process = start(*sockets(tmp_path))
    process.wait_ready()
    assert process.stop(signal.SIGHUP) == 0, process.err
    assert not list(tmp_path.glob("*.sock"))
