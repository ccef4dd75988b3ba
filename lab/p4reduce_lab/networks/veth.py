# SPDX-License-Identifier: Apache-2.0
"""Pairs of virtual Ethernet interfaces: one end is a switch's port, the other a worker's.

They belong to the kernel, not to a process. So a janitor removes them, also after a run that is
killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence

from p4reduce_lab.errors import LabError
from p4reduce_lab.networks import namespaces
from p4reduce_lab.networks.namespaces import run
from p4reduce_lab.processes.rundir import removed_afterwards

MTU = 1500
OFFLOADS = ("rx", "tx", "sg", "tso", "gso", "gro")
_SOL_PACKET = 263
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_ETH_P_ALL = 3
_free_letters = deque("ghijklmnopqrstuvwxyz")  # not hexadecimal digits


def unavailable() -> str | None:
    """Say what keeps this process from making pairs; None: nothing does."""
    tools = {"ip": "iproute2", "ethtool": "ethtool"}
    return namespaces.unavailable(tools, "veth interfaces need")


class VethPorts:
    """Pairs for the ports 1 to `count`, in this process's network namespace, up.

    Each worker's end has an address of its own, 10.77.0.0 + port, since workers take theirs from
    the interface. Offloads are off, since a switch that reads the interface would get frames with
    unfinished checksums or several merged into one, and BMv2 loses some of them. IPv6 and ARP are
    off, since the kernel would solicit routers, and answer for any of this machine's addresses.

    Raises:
        LabError: the kernel refused a pair; those that had been made are removed.
    """

    def __init__(self, count: int) -> None:
        # Interface names have at most 15 bytes: 3 + 6 (of a pid) + 1 + 1 + 3 of a port.
        if not _free_letters:
            raise LabError("this process has 20 sets of pairs already; close one")
        letter = _free_letters.popleft()
        prefix = f"p4r{os.getpid():x}{letter}"
        numbers = range(1, count + 1)
        self.switch_side: Mapping[int, str] = {port: f"{prefix}s{port}" for port in numbers}
        self.worker_side: Mapping[int, str] = {port: f"{prefix}w{port}" for port in numbers}
        self.interface = f"{prefix}w{{port}}"
        self._undo = contextlib.ExitStack()
        self._undo.callback(_free_letters.append, letter)
        self._undo.enter_context(removed_afterwards(*self.switch_side.values()))
        try:
            for port in numbers:
                _make_pair(self.switch_side[port], self.worker_side[port])
                # Without a route (/32): several such interfaces are in the same namespace.
                address = f"10.77.{port >> 8}.{port & 0xFF}/32"
                run(["ip", "address", "add", address, "dev", self.worker_side[port]])
        except LabError as error:
            self.close()
            raise LabError(f"cannot make the switch's ports: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the pairs."""
        self._undo.close()

    def __enter__(self) -> VethPorts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _make_pair(ours: str, theirs: str) -> None:
    run(["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs])
    for name in (ours, theirs):
        prepare(name, arp=False)


def prepare(interface: str, *, prefix: Sequence[str] = (), arp: bool = True) -> None:
    """Configure one end of a pair so that it does not disturb the switch, and bring it up.

    Args:
        interface: its name.
        prefix: a command that runs another one in the interface's network namespace.
        arp: whether the kernel is to answer ARP for it.

    Raises:
        LabError: it cannot be brought up.
    """
    # Router solicitations and the like would be frames that nobody sent; a kernel without IPv6
    # sends none.
    with contextlib.suppress(LabError):
        setting = f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"
        run([*prefix, "sh", "-c", f"echo 1 > {setting}"])
    run([*prefix, "ethtool", "-K", interface, *(w for o in OFFLOADS for w in (o, "off"))])
    state = ["mtu", str(MTU), "arp", "on" if arp else "off", "up"]
    run([*prefix, "ip", "link", "set", "dev", interface, *state])


def open_interface(name: str) -> socket.socket:
    """Open a packet socket on an interface for whole frames of other senders, both ways.

    Raises:
        OSError: there is no such interface, or no right to it.
    """
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        # What this end sends itself (PACKET_OUTGOING) must not come back in.
        opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        opened.bind((name, _ETH_P_ALL))
    except OSError as error:
        opened.close()
        if error.errno == errno.ENODEV:
            raise OSError(errno.ENODEV, f"there is no interface {name}") from None
        raise
    return opened
