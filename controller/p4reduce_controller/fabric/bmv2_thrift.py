# SPDX-License-Identifier: Apache-2.0
"""Reads registers of a BMv2 on this machine by its Thrift server.

BMv2's P4Runtime server does not show registers. Its Thrift server does, if BMv2 is built with it,
by the call `bm_register_read_all(cxt_id, register_array_name)` of the service `standard`, in
Thrift's strict binary protocol without frames. This module never writes to the switch.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from p4reduce_controller.fabric.switch_ports import bmv2_at, grpc_port, values_of

TIMEOUT_S = 2.0
MOST_CELLS = 1 << 20
DEFAULT_PORT = 9090  # of BMv2's --thrift-port
_VERSION = 0x80010000
_CALL, _REPLY = 1, 2  # types of messages
_STOP, _I32, _I64, _STRING, _LIST = 0, 8, 10, 11, 15  # types of fields
_LISTENS = "0A"  # a TCP socket's state
_LARGEST = (1 << 63) - 1


class ThriftError(Exception):
    """BMv2 does not show its registers by Thrift. The message says why."""


def port_of(address: str, processes: Path = Path("/proc")) -> int | None:
    """Return the Thrift port of the BMv2 that serves P4Runtime at `address` on this machine.

    None if there is no such process here, it has no Thrift, or it is in another network namespace.
    """
    found = bmv2_at(address, processes)
    if found is None:
        return None
    process, command = found
    said = [int(text) for text in values_of(command, ("--thrift-port",)) if text.isdecimal()]
    wanted = said[-1] if said else DEFAULT_PORT
    try:
        if (process / "ns/net").readlink() != (processes / "self/ns/net").readlink():
            return None
        ports = listening_ports(process) - {grpc_port(address)}
    except OSError:  # another user's
        return wanted or None
    if wanted in ports:
        return wanted
    # 0: the kernel chose one, and nothing else of BMv2 listens by TCP.
    return ports.pop() if wanted == 0 and len(ports) == 1 else None


def listening_ports(process: Path) -> set[int]:
    """Return the TCP ports that a process listens on. Raises OSError."""
    own = set()
    for entry in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(entry.readlink()))
    ports = set()
    for name in ("tcp", "tcp6"):
        table = process / "net" / name
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in own:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def read_registers(port: int, names: Sequence[str]) -> list[list[int]]:
    """Return all cells of each register, one register after the other. Raises ThriftError."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            for number, name in enumerate(names):
                connection.sendall(_call(number, name))
            with connection.makefile("rb") as stream:
                return [_Reply(stream.read).cells(name) for name in names]
    except OSError as error:
        raise ThriftError(
            f"its Thrift server at 127.0.0.1:{port} does not answer: {error}"
        ) from None


def _call(number: int, register: str) -> bytes:
    method, name = b"standard:bm_register_read_all", register.encode()
    return b"".join(
        (
            struct.pack(">Ii", _VERSION | _CALL, len(method)) + method + struct.pack(">i", number),
            struct.pack(">bhi", _I32, 1, 0),
            struct.pack(">bhi", _STRING, 2, len(name)) + name,
            bytes([_STOP]),
        )
    )


class _Reply:
    """Reads one answer off a stream. `read` returns fewer bytes only at the stream's end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def _bytes(self, count: int) -> bytes:
        taken = self._read(count)
        if len(taken) < count:
            raise ThriftError("its Thrift server hung up in the middle of an answer")
        return taken

    def _numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def cells(self, register: str) -> list[int]:
        """Return the list in the answer. Raises ThriftError."""
        version, length = self._numbers(">Ii")
        if version & 0xFFFF0000 != _VERSION or not 0 <= length <= 100:
            raise ThriftError("the server at its Thrift port does not speak Thrift")
        self._bytes(length + 4)  # the method's name, and the call's number
        [kind] = self._numbers(">b")
        if version & 0xFF != _REPLY or kind != _LIST:
            raise ThriftError(f"its Thrift server does not show the register {register!r}")
        field, of, count = self._numbers(">hbi")
        if field != 0 or of != _I64 or not 0 <= count <= MOST_CELLS:
            raise ThriftError(
                f"its Thrift server's answer for {register!r} is not a list of numbers"
            )
        found = self._numbers(f">{count}q")
        self._bytes(1)  # the end of the struct
        if _LARGEST in found:
            raise ThriftError(
                f"a cell of {register!r} has 64 bits, of which Thrift shows 63: "
                "slots of jobs of 64 ranks are not shown"
            )
        return list(found)
