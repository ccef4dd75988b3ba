# SPDX-License-Identifier: Apache-2.0
"""Examines what the kernel offers, and what it permits this user."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from p4reduce.transport.registry import port_type
from p4reduce_native.cpus import usable_cpus

from p4reduce_controller.doctor.finding import Finding, failure, note, ok, warning

SECTION = "Kernel"
PACKET_SOCKET = "packet sockets"
UDP_RUNS = "UDP runs"
WANTED_BUFFER = 4 << 20  # bytes; what the transports and the switch's ports ask for
WANTED_FILES = 1024
_TIMEOUT = 10.0  # seconds
UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h; Python has no names for them
_DATAGRAM = bytes(1000)
_UDP_SCHEME = "udp:"


def examine(interface: str | None) -> Iterator[Finding]:
    """Examine the kernel. Packet sockets are required if `interface` is a network interface."""
    yield _cores()
    yield _packet_sockets(interface is not None and port_type(interface)[0].packet_socket)
    yield _udp_runs(interface is not None and port_type(interface)[0].scheme == _UDP_SCHEME)
    yield _namespaces()
    yield from map(_buffer, ("wmem_max", "rmem_max"))
    yield _open_files()


def _cores() -> Finding:
    cores = usable_cpus()
    found = f"{cores} usable"
    if cores < 2:
        return warning(
            SECTION,
            "cores",
            found,
            "Switch and workers take turns: expect retransmissions, or give them a larger machine.",
        )
    return ok(SECTION, "cores", found)


def _packet_sockets(needed: bool) -> Finding:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        found = "not allowed to this user, and network interfaces require them"
        cure = (
            "Run as root or with CAP_NET_RAW, or use the embedded switch's Unix sockets "
            "(interface unix:PATH)."
        )
        make = failure if needed else note
        return make(SECTION, PACKET_SOCKET, found, cure)
    except OSError as error:
        make = failure if needed else note
        return make(
            SECTION,
            PACKET_SOCKET,
            f"this kernel has none: {error.strerror}",
            "Use the embedded switch's Unix sockets, or a kernel with CONFIG_PACKET.",
        )
    return ok(SECTION, PACKET_SOCKET, "allowed")


def _udp_runs(needed: bool) -> Finding:
    try:
        with _loopback_socket() as near, _loopback_socket() as far:
            far.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            near.connect(far.getsockname())
            size = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", len(_DATAGRAM)))
            near.sendmsg([_DATAGRAM, _DATAGRAM], [size])
    except OSError as error:
        return (warning if needed else note)(
            SECTION,
            UDP_RUNS,
            f"refused: {error.strerror}. Each datagram takes a call of its own",
            "UDP ports work, and are slower from 1 Gbit/s on. Linux 5.0 and later takes runs.",
        )
    return ok(SECTION, UDP_RUNS, "one call sends and receives many datagrams")


def _loopback_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


def _namespaces() -> Finding:
    name = "namespaces, veth"
    purpose = "BMv2's ports and Mininet require them"
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return note(
            SECTION, name, f"not looked at; {purpose}", "apt-get install util-linux iproute2"
        )
    if os.geteuid() != 0:
        return note(SECTION, name, f"only for root; {purpose}", "Run the doctor with sudo to see.")
    # The pair lives in the namespace, and goes with it.
    command = ["unshare", "--net", "ip", "link", "add", "p4rdoc0", "type", "veth"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return note(SECTION, name, f"{error}; {purpose}", "Use the embedded switch.")
    if done.returncode:
        return note(
            SECTION,
            name,
            f"{done.stderr.strip()[:200] or 'refused'}; {purpose}",
            "In a container: give it CAP_NET_ADMIN and CAP_SYS_ADMIN, or use the embedded switch.",
        )
    return ok(SECTION, name, "can be made")


def _buffer(name: str) -> Finding:
    path = Path("/proc/sys/net/core", name)
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):
        return note(SECTION, name, "cannot be read", f"See whether {path} is there.")
    found = f"{limit >> 10:,} KiB for a socket"
    if limit < WANTED_BUFFER:
        return warning(
            SECTION,
            name,
            f"{found}, of {WANTED_BUFFER >> 10:,} asked for: a burst may overflow it",
            f"sysctl -w net.core.{name}={WANTED_BUFFER}, and fewer slots (--default-slots).",
        )
    return ok(SECTION, name, found)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < WANTED_FILES:
        return warning(
            SECTION,
            "open files",
            f"{soft} per process",
            f"ulimit -n {WANTED_FILES}: the controller has a connection to each worker.",
        )
    found = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} per process"
    return ok(SECTION, "open files", found)
