# SPDX-License-Identifier: Apache-2.0
"""The secrets and ports of a network whose switches and controller are on this host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p4reduce.variables import TOKEN, UDP_KEY
from p4reduce_common.host_port import format_host_port

from p4reduce_lab.deploy.credentials import TlsPaths, make_key, make_token
from p4reduce_lab.deploy.ports import FreePorts
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.switches.udp_ports import UdpPorts, free_udp_ports, udp_ports


@dataclass(frozen=True)
class DeployPlan:
    """The secrets and ports.

    Attributes:
        variables: the secrets, by the variables in which workers have them.
        ports: of all switches, one after the other: the sockets of port 1, 2, ….
        listen: the controller's address; TCP port 0: any.
        key_file: of UDP ports; "" if there are none.
        certificates: of the controller; None: without TLS.
    """

    variables: dict[str, str]
    ports: list[str]
    listen: str
    key_file: str
    certificates: TlsPaths | None


def draw(settings: DeploySettings, ports: int, directory: Path) -> DeployPlan:
    """Choose secrets and ports; write key and certificates to files.

    Args:
        settings: of the network.
        ports: the number of ports of all switches.
        directory: a private directory with a short path.

    Raises:
        LabError: ports are not free.
    """
    variables = {TOKEN: make_token()}
    key_file, certificates = "", None
    if not settings.unix:
        file, variables[UDP_KEY] = make_key(directory)
        key_file = str(file)
    listen = f"unix:{directory / 'controller.sock'}"
    host = settings.host or "127.0.0.1"
    free = FreePorts(host, settings.ports) if settings.ports and not settings.first_port else None
    every = _ports(settings, ports, directory, free)
    if settings.is_remote:
        from p4reduce_lab.deploy.certificates import make_certificates

        made = make_certificates(directory, [settings.host])
        variables |= made.variables
        certificates = made.controller
        port = settings.first_port if free is None else free.tcp()
        listen = format_host_port(settings.host, port)
    return DeployPlan(variables, every, listen, key_file, certificates)


def _ports(
    settings: DeploySettings, count: int, directory: Path, free: FreePorts | None
) -> list[str]:
    if settings.unix:
        return [f"unix:{directory}/port{n}.sock" for n in range(1, count + 1)]
    host = settings.host or "127.0.0.1"
    if free is not None:
        first = free.udp(count)[0]
    elif not settings.host and not settings.first_port:
        return list(udp_ports(count).values())
    else:
        first = free_udp_ports(host, count, settings.first_port)
    return list(UdpPorts(host, count, first).values())
