# SPDX-License-Identifier: Apache-2.0
"""Finds out which ports a switch has.

P4Runtime cannot list ports. The embedded switch lists them in the metadata of Capabilities. BMv2
has them on its command line, which can be read if it runs on this machine. The ports of other
switches are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from p4reduce.control.controller_address import is_local
from p4reduce_common.host_port import parse_host_port

# As p4reduce-switch sends them.
PORTS_METADATA = "p4reduce-ports"
NO_CARRIER_METADATA = "p4reduce-ports-without-carrier"

_BMV2 = "simple_switch_grpc"


@dataclass(frozen=True)
class SwitchPorts:
    """The ports of a switch.

    Attributes:
        there: all ports.
        dark: the ports whose interface is known to have no carrier.
    """

    there: frozenset[int]
    dark: frozenset[int] = frozenset()


def known(metadata: Iterable[tuple[str, str | bytes]], address: str) -> SwitchPorts | None:
    """Return the ports of the switch at `address`, by what it has sent; None if unknown."""
    ports = ports_in(metadata)
    return of_bmv2(address) if ports is None and is_local(address) else ports


def ports_in(metadata: Iterable[tuple[str, str | bytes]]) -> SwitchPorts | None:
    """Read the ports from the embedded switch's metadata; None for other switches."""
    said = dict(metadata)
    if PORTS_METADATA not in said:
        return None
    there, dark = (
        frozenset(int(number) for number in re.findall(r"\d+", str(said.get(name, ""))))
        for name in (PORTS_METADATA, NO_CARRIER_METADATA)
    )
    return SwitchPorts(there, dark)


def of_bmv2(address: str, processes: Path = Path("/proc")) -> SwitchPorts | None:
    """Read the ports from the command line of the BMv2 that serves at `address`, if it runs
    here."""
    command = _bmv2_at(address, processes)
    if command is None:
        return None
    given = [each.partition("@") for each in _values_of(command, ("-i", "--interface"))]
    names = {int(number): name for number, _, name in given if number.isdecimal()}
    return SwitchPorts(frozenset(names), frozenset(n for n in names if _is_dark(names[n])))


def _bmv2_at(address: str, processes: Path) -> list[str] | None:
    """Return the command line of the BMv2 that serves at `address`, if it runs here."""
    for command in _commands(processes):
        served = _values_of(command, ("--grpc-server-addr",))
        if Path(command[0]).name == _BMV2 and any(_same_server(address, each) for each in served):
            return command
    return None


def _same_server(address: str, served: str) -> bool:
    """Whether what a client calls on this machine is what a server serves.

    A port says enough, whatever the hosts are called. A Unix socket has none.
    """
    port = _grpc_port(address)
    return address == served if port is None else port == _grpc_port(served)


def _grpc_port(address: str) -> int | None:
    """Return the port of a gRPC server's address; None if it has none."""
    try:
        return parse_host_port(address)[1]
    except ValueError:
        return None


def _commands(processes: Path) -> Iterator[list[str]]:
    for path in processes.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        if words[0]:
            yield words


def _values_of(command: list[str], options: tuple[str, ...]) -> list[str]:
    """Return the values of some options of a command line, written with a space or with `=`."""
    apart = [value for option, value in pairwise(command) if option in options]
    split = [word.partition("=") for word in command]
    return apart + [value for option, equals, value in split if equals and option in options]


def _is_dark(interface: str) -> bool:
    try:
        return Path("/sys/class/net", interface, "carrier").read_text().strip() == "0"
    except FileNotFoundError:
        return False  # it is in another network namespace
    except OSError:
        return True  # EINVAL: it is down
