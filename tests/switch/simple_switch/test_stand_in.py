# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-simple-switch-grpc` as scripts start it: a process on veth pairs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from p4reduce_common.commands import simple_switch_grpc
from p4reduce_common.grpc_channels import open_channel
from p4reduce_switch.p4runtime.device_config import program_of
from p4rt_client import PROGRAMS, Client, config
from scapy.utils import rdpcap
from switch_peer import DEADLINE_S, eventually
from veth_pairs import on_wire, read_wire, veth_pair

COMMAND = [sys.executable, "-c", f"import sys; from {simple_switch_grpc.__module__} import "]
COMMAND[-1] += "simple_switch_grpc; simple_switch_grpc()"
PROBE = struct.Struct(">HBBBBIIII")
JSON = str(PROGRAMS / "queues.json")


class StandIn:
    """The process. Port 0 of the gRPC address is told in the line that says it is ready."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.out, self.err = directory / "out", directory / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = subprocess.Popen([*COMMAND, *arguments], stdout=out, stderr=err)

    def address(self) -> str:
        def ready() -> re.Match[str] | None:
            assert self.popen.poll() is None, self.said()
            return re.search(r"ready: P4Runtime on (\S+),", self.out.read_text())

        return eventually(ready, "the switch is ready").group(1)

    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self.popen.wait(DEADLINE_S)


@contextlib.contextmanager
def standing_in(directory: Path, *arguments: str) -> Iterator[StandIn]:
    process = StandIn(directory, *arguments)
    try:
        yield process
    finally:
        process.stop(signal.SIGKILL)


@pytest.fixture
def veths() -> Iterator[list[tuple[str, str]]]:
    """Two veth pairs, up and silent; (the switch's end, the test's end) of each."""
    names = [(f"si{os.getpid()}{n}a", f"si{os.getpid()}{n}b") for n in (1, 2)]
    with contextlib.ExitStack() as made:
        yield [made.enter_context(veth_pair(*pair)) for pair in names]


def probe(to: int, tag: int) -> bytes:
    return PROBE.pack(to, 0, 0, 0, tag, 0, 0, 0, 0) + bytes(40)


def envelope(program: bytes) -> bytes:
    """A serialised p4.tmp.P4DeviceConfig with `reassign`, as p4lang/tutorials sends it."""
    size, length = len(program), b""
    while size > 0x7F:
        length += bytes([0x80 | size & 0x7F])
        size >>= 7
    return b"\x08\x01\x1a" + length + bytes([size]) + program


def test_a_network_of_two_hosts(veths: list[tuple[str, str]], tmp_path: Path) -> None:
    (left, left_end), (right, right_end) = veths
    arguments = ["-i", f"1@{left}", "-i", f"2@{right}", "--pcap", str(tmp_path)]
    arguments += ["--nanolog", "ipc:///tmp/bm-0-log.ipc", "--device-id", "3", JSON]
    arguments += ["--log-console", "--thrift-port", "9090"]
    arguments += ["--", "--grpc-server-addr", "127.0.0.1:0", "--cpu-port", "255"]
    with (
        standing_in(tmp_path, *arguments) as switch,
        on_wire(left_end) as left_wire,
        on_wire(right_end) as right_wire,
    ):
        address = switch.address()
        left_wire.send(probe(2, tag=7))  # the JSON alone forwards
        assert read_wire(right_wire)[5] == 7
        client = Client(address, device_id=3)
        client.become_primary()
        wanted = config("queues")
        wanted.p4_device_config = envelope(wanted.p4_device_config)
        client.set_config(wanted)
        assert client.get_config().config == wanted
        right_wire.send(probe(1, tag=8))
        assert read_wire(left_wire)[5] == 8
        assert switch.stop() == 0
        client.close()
        said = switch.said()
    assert "Traceback" not in said
    for option in ("--thrift-port", "--nanolog"):
        assert said.count(f"{option} has no meaning here") == 1
    tags = {
        path.name: [bytes(packet)[5] for packet in rdpcap(str(path))]
        for path in tmp_path.glob("*.pcap")
    }
    assert tags == {
        f"{left}_in.pcap": [7],
        f"{left}_out.pcap": [8],
        f"{right}_in.pcap": [8],
        f"{right}_out.pcap": [7],
    }


def test_tls_without_client_certificates(tmp_path: Path) -> None:
    tool = Path(__file__).parents[3] / "tools" / "make-certificates"
    subprocess.run(
        [tool, tmp_path / "tls", "server=localhost,127.0.0.1"],
        check=True,
        capture_output=True,
        timeout=240,
    )
    files = {name: str(tmp_path / "tls" / name) for name in ("server.pem", "server.key", "ca.pem")}
    target = ["--grpc-server-addr", "127.0.0.1:0", "--grpc-server-ssl"]
    target += ["--grpc-server-cert", files["server.pem"], "--grpc-server-key", files["server.key"]]
    with standing_in(tmp_path, "--no-p4", "--", *target) as switch:
        address = switch.address()
        trust = grpc.ssl_channel_credentials(Path(files["ca.pem"]).read_bytes())
        name = ("grpc.ssl_target_name_override", "localhost")
        with open_channel(address, trust, [name]) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            asked = stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=DEADLINE_S)
        assert asked.p4runtime_api_version == "1.4.1"
        assert switch.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-i", "1@nosuchif0", "--no-p4"], "port 1=nosuchif0: "),
        (["BROKEN", "--", "--grpc-server-addr", "127.0.0.1:0"], "p4_device_config: "),
        (["--no-p4", "--log-file", "/nowhere/log"], "--log-file /nowhere/log: No such file"),
        (["--no-p4", "--debugger"], "p4reduce-switch --debug PATH"),
    ],
)
def test_what_cannot_start(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    line = [str(broken) if argument == "BROKEN" else argument for argument in arguments]
    with standing_in(tmp_path, *line) as switch:
        assert switch.popen.wait(DEADLINE_S) == 1
        assert complaint in switch.said()
        assert "Traceback" not in switch.said()


def test_a_log_file(tmp_path: Path) -> None:
    log = tmp_path / "switch.log"
    arguments = ["--no-p4", "--log-file", str(log), "-L", "warn", "--thrift-port", "1"]
    with standing_in(tmp_path, *arguments, "--", "--grpc-server-addr", "127.0.0.1:0") as switch:
        switch.address()
        assert switch.stop() == 0
    assert "--thrift-port has no meaning here" in log.read_text()
    assert switch.err.read_text() == ""


@pytest.mark.parametrize(
    "message",
    [
        b'{"program": 1}',
        b"",
        b"\x08",
        b"\x08\x01",
        b"\x1a\x05{}",
        b"\x1a" + b"\xff" * 12,
        b"\x22\x02{}",
        b"\x18\x02",
        b"\x0a\x02{}",
    ],
)
def test_what_is_no_envelope_is_the_program(message: bytes) -> None:
    assert program_of(message) == message


def test_envelopes() -> None:
    for size in (0, 1, 127, 128, 20_000):
        program = b"x" * size
        assert program_of(envelope(program)) == program
    assert program_of(b"\x1a\x02{}\x12\x03\x0a\x01a\x08\x00") == b"{}"
