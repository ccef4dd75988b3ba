# SPDX-License-Identifier: Apache-2.0
"""A network whose switches and controller are all on this host: its parts, by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from p4reduce import variables
from p4reduce_common.host_port import format_host_port

from p4reduce_lab.deploy.arrangement import arrange
from p4reduce_lab.deploy.credentials import make_key, make_token
from p4reduce_lab.deploy.ports import FreePorts
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.services import Parts, parts_of, serve_options
from p4reduce_lab.switches.embedded import EmbeddedSwitch, unix_rows
from p4reduce_lab.switches.udp_ports import UdpPorts, free_udp_ports, udp_ports
from p4reduce_lab.topology import LabTopology, PortRow


def deployed(settings: DeploySettings, directory: Path) -> Parts:
    """Draw secrets and ports, and decide which switch has which ports.

    Args:
        settings: of the network.
        directory: a private one with a short path, for sockets, keys and state.

    Raises:
        LabError: ports are not free, something is missing, or the settings do not fit the ranks.
    """
    topology = arrange(settings)
    given, key_file, tls = {variables.TOKEN: make_token()}, None, None
    if not settings.unix:
        key_file, given[variables.UDP_KEY] = make_key(directory)
    host = settings.host or "127.0.0.1"
    free = FreePorts(host, settings.ports) if settings.ports and not settings.first_port else None
    rows = _rows(settings, host, topology, directory, free)
    listen = f"unix:{directory / 'controller.sock'}"
    if settings.is_remote:
        from p4reduce_lab.deploy.certificates import make_certificates

        made = make_certificates(directory, [host])
        given, tls = given | made.variables, made.controller
        # TCP port 0: any.
        listen = format_host_port(host, settings.first_port if free is None else free.tcp())

    def launcher(own: Path, ports: Mapping[int, str]) -> EmbeddedSwitch:
        captures = Path(settings.captures).absolute() if settings.captures else None
        if captures and len(topology.nodes) > 1:
            captures /= own.name
        by_udp = any(where.startswith("udp:") for where in ports.values())
        return EmbeddedSwitch(own, ports, key_file=key_file if by_udp else None, captures=captures)

    parts = parts_of(topology, rows, launcher, directory)
    slots = settings.slots or ("auto" if settings.unix else EmbeddedSwitch.slots)
    parts.serve += serve_options(listen, slots=slots, lease=settings.lease, tls=tls)
    parts.variables |= given
    parts.tls = tls
    where = "Unix ports" if settings.unix else "UDP ports"
    at = f" at {settings.host} (TLS)" if settings.is_remote else " on this host"
    parts.text += f", with {where} for {settings.ranks} ranks{at}"
    return parts


def _rows(
    settings: DeploySettings,
    host: str,
    topology: LabTopology,
    directory: Path,
    free: FreePorts | None,
) -> list[PortRow]:
    """Choose the sockets of all ranks' ports, one switch after the other."""
    if settings.unix:
        return unix_rows(topology, directory)
    ranks, count = topology.ranks, topology.rows
    if free is not None:
        first = free.udp(ranks * count)[0]
    elif settings.host or settings.first_port:
        first = free_udp_ports(host, ranks * count, settings.first_port)
    else:
        return [udp_ports(ranks) for _ in range(count)]
    return [UdpPorts(host, ranks, first + ranks * number) for number in range(count)]
