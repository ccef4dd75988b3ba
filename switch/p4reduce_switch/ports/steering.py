# SPDX-License-Identifier: Apache-2.0
"""Sockets of several cores at one UDP port, and the rule by which the kernel chooses one.

They form one SO_REUSEPORT group, in the order of the cores. A datagram from a known peer goes to
the connected socket of its core. For others, a classic BPF program reads the datagram and returns a
place in the group (SO_ATTACH_REUSEPORT_CBPF, Linux 4.5). That is the core that a handshake names,
or that a token belongs to (`p4reduce_native.cores`).

If a socket is closed, others move to its place in the group. So the parent process keeps the
sockets open even while a core does not run.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import ExitStack

from p4reduce_native.udp_handshake import CORE_OFFSET, MAGIC, TOKEN_BYTES

from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.port import PortError
from p4reduce_switch.ports.udp import UdpPlace, join_port, listen_at

_SO_ATTACH_REUSEPORT_CBPF = 51
_SOCK_FILTER = struct.Struct("=HBBI")  # <linux/filter.h>: code, jump if true, if false, operand
_SOCK_FPROG = struct.Struct("@HP")  # instructions, and their address
_LOAD_WORD, _LOAD_BYTE, _JUMP_EQUAL = 0x20, 0x30, 0x15  # of the payload, at a constant offset
_MODULO, _RETURN_A = 0x94, 0x16


def open_listeners(spec: PortSpec, cores: int) -> list[socket.socket]:
    """Open the sockets of a port at a `UdpPlace`, one per core, in order.

    Raises:
        PortError: nothing can listen there, or the kernel takes no BPF program.
    """
    assert isinstance(spec.place, UdpPlace)
    with ExitStack() as undo:
        try:
            listeners = [listen_at(spec.place.host, spec.place.udp_port)]
            undo.callback(listeners[0].close)
            for _ in range(1, cores):
                listeners.append(join_port(listeners[0]))
                undo.callback(listeners[-1].close)
        except OSError as error:
            raise PortError(f"port {spec}: {error.strerror or error}") from None
        try:
            _attach(listeners[0], _bpf_program(cores))
        except OSError as error:
            raise PortError(
                f"port {spec}: several cores need SO_ATTACH_REUSEPORT_CBPF, which this kernel "
                f"refuses ({error.strerror}): leave out --cores, or use Unix ports"
            ) from None
        undo.pop_all()
        return listeners


def _bpf_program(cores: int) -> bytes:
    """The program: the place in the group, by what the datagram begins with.

    A datagram that is too short for it is delivered to core 0, where it is a stranger's.
    """
    to_core = [(_MODULO, 0, 0, cores), (_RETURN_A, 0, 0, 0)]
    program = [
        (_LOAD_WORD, 0, 0, 0),
        (_JUMP_EQUAL, 0, 1 + len(to_core), int.from_bytes(MAGIC, "big")),
        (_LOAD_BYTE, 0, 0, CORE_OFFSET),
        *to_core,
        (_LOAD_BYTE, 0, 0, TOKEN_BYTES - 1),
        *to_core,
    ]
    return b"".join(_SOCK_FILTER.pack(*each) for each in program)


def _attach(listener: socket.socket, rule: bytes) -> None:
    held = ctypes.create_string_buffer(rule, len(rule))
    program = _SOCK_FPROG.pack(len(rule) // _SOCK_FILTER.size, ctypes.addressof(held))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)
