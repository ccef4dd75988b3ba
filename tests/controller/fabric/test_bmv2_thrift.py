# SPDX-License-Identifier: Apache-2.0
"""Registers by Thrift: what a server may answer. test_controller_bmv2.py reads those of BMv2."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from p4reduce_controller.fabric import bmv2_thrift
from p4reduce_controller.fabric.bmv2_thrift import ThriftError, port_of, read_registers

HEAD = struct.pack(">Ii", 0x80010002, 20) + b"bm_register_read_all" + bytes(4)


def answer(*cells: int) -> bytes:
    """What BMv2 answers, as its Thrift library writes it."""
    values = struct.pack(f">{len(cells)}q", *cells)
    return HEAD + struct.pack(">bhbi", 15, 0, 10, len(cells)) + values + b"\0"


@contextmanager
def server(data: bytes) -> Iterator[int]:
    """Answers one connection with `data`, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(4096)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_cells_of_two_registers() -> None:
    with server(answer(1, 2, 3) + answer(1 << 32, 0)) as port:
        assert read_registers(port, ["jobs", "rounds"]) == [[1, 2, 3], [1 << 32, 0]]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Thrift"),
        (answer(1, 2)[:-5], "hung up in the middle"),
        (b"", "hung up in the middle"),
        (HEAD + struct.pack(">bhi", 8, 1, 1) + b"\0", "does not show the register 'jobs'"),
        (HEAD + struct.pack(">bhbi", 15, 0, 10, 1 << 30), "is not a list of numbers"),
        (answer((1 << 63) - 1), "64 bits, of which Thrift shows 63"),
    ],
)
def test_what_is_no_answer(data: bytes, says: str) -> None:
    with server(data) as port, pytest.raises(ThriftError, match=says):
        read_registers(port, ["jobs"])


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ThriftError, match=f"127.0.0.1:{port} does not answer"):
        read_registers(port, ["jobs"])


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bmv2_thrift, "TIMEOUT_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ThriftError, match="timed out"),
    ):
        read_registers(silent.getsockname()[1], ["jobs"])


def test_the_port_that_the_kernel_chose(tmp_path: Path) -> None:
    """This process stands for BMv2: its sockets, with BMv2's command line."""
    here = tmp_path / "1"
    here.mkdir()
    own = Path("/proc/self")
    for name in ("fd", "net", "ns"):
        (here / name).symlink_to(Path("/proc") / str(os.getpid()) / name)
    (tmp_path / "self").symlink_to(own.resolve())
    command = ["simple_switch_grpc", "--thrift-port", "0", "--", "--grpc-server-addr", "unix:/s"]
    (here / "cmdline").write_text("\0".join(command) + "\0")
    before = bmv2_thrift.listening_ports(here)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert bmv2_thrift.listening_ports(here) - before == {port}
        assert port_of("unix:/s", tmp_path) == (None if before else port)
        command[2] = str(port)
        (here / "cmdline").write_text("\0".join(command) + "\0")
        assert port_of("unix:/s", tmp_path) == port
    assert port_of("unix:/s", tmp_path) is None
    assert port_of("unix:/other", tmp_path) is None
