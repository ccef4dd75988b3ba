# SPDX-License-Identifier: Apache-2.0
"""The secrets and ports of a network, chosen once.

Where switches and controller are in the care of different processes, the first of them draws it,
and the others read it in the directory that they share. So does one that is started again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from p4reduce.variables import TOKEN, UDP_KEY
from p4reduce_common.host_port import format_host_port, parse_host_port
from p4reduce_native.file_lock import lock_file

from p4reduce_lab.deploy.credentials import make_certificates, make_key, make_token
from p4reduce_lab.deploy.settings import Settings
from p4reduce_lab.switches.udp_ports import UdpPorts, free_udp_ports, udp_ports


@dataclass(frozen=True)
class Plan:
    """The secrets and ports.

    Attributes:
        variables: the secrets, by the variables in which workers have them.
        ports: of all switches, one after the other: the sockets of port 1, 2, ….
        listen: the controller's address; TCP port 0: any.
        key_file: of UDP ports; "" if there are none.
        certificates: the controller's options for TLS.
    """

    variables: dict[str, str]
    ports: list[str]
    listen: str
    key_file: str
    certificates: list[str]


def draw(settings: Settings, ports: int, directory: Path) -> Plan:
    """Choose secrets and ports; write key and certificates to files.

    Args:
        settings: of the network.
        ports: the number of ports of all switches.
        directory: a private directory with a short path.

    Raises:
        LabError: ports are not free, or there is no openssl.
    """
    variables = {TOKEN: make_token()}
    key_file, certificates = "", []
    if not settings.unix:
        file, variables[UDP_KEY] = make_key(directory)
        key_file = str(file)
    listen = f"unix:{directory / 'controller.sock'}"
    every = _ports(settings, ports, directory)
    if settings.is_remote:
        made = make_certificates(directory, settings.host)
        variables |= made.variables
        for option, path in zip(
            ("--tls-cert", "--tls-key", "--tls-ca"), made.controller, strict=True
        ):
            certificates += [option, str(path)]
        # A controller that another process starts again cannot know which port the last one got.
        own = parse_host_port(every[0].removeprefix("udp:"))[1]
        listen = format_host_port(settings.host, own if settings.part else settings.first_port)
    return Plan(variables, every, listen, key_file, certificates)


def shared(settings: Settings, ports: int, directory: Path) -> Plan:
    """Return the plan of a directory, or make one. Hold `locked` meanwhile.

    Raises LabError: as `draw`.
    """
    file = directory / "plan.json"
    if file.exists():
        return Plan(**json.loads(file.read_text()))
    plan = draw(settings, ports, directory)
    new = directory / "plan.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        json.dump(asdict(plan), opened)
    new.replace(file)
    return plan


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes that share a directory from making a plan meanwhile."""
    path = directory / "plan.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock_file(lock, path, wait=True)
        yield
    finally:
        os.close(lock)


def _ports(settings: Settings, count: int, directory: Path) -> list[str]:
    if settings.unix:
        return [f"unix:{directory}/port{n}.sock" for n in range(1, count + 1)]
    if not settings.host and not settings.first_port:
        return list(udp_ports(count).values())
    host = settings.host or "127.0.0.1"
    first = free_udp_ports(host, count, settings.first_port)
    return list(UdpPorts(host, count, first).values())
