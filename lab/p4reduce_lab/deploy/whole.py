# SPDX-License-Identifier: Apache-2.0
"""A network whose switches and controller are all on this host: its parts, by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from p4reduce import variables
from p4reduce_common.host_port import format_host_port, parse_host_port

from p4reduce_lab.deploy.arrangement import Arrangement, arrange
from p4reduce_lab.deploy.credentials import make_key, make_token
from p4reduce_lab.deploy.ports import FreePorts
from p4reduce_lab.deploy.services import Parts, serve_options
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.udp_ports import UdpPorts, free_udp_ports, udp_ports
from p4reduce_lab.topology_file import link_table, switch_table, topology_text

_UPLINK = 500  # a port above those of all ranks


def parts_of(settings: DeploySettings, directory: Path) -> Parts:
    """Draw secrets and ports, and decide which switch has which ports.

    Args:
        settings: of the network.
        directory: a private one with a short path, for sockets, keys and state.

    Raises:
        LabError: ports are not free, something is missing, or the settings do not fit the ranks.
    """
    arrangement = arrange(settings)
    given, key_file, tls = {variables.TOKEN: make_token()}, None, None
    if not settings.unix:
        key_file, given[variables.UDP_KEY] = make_key(directory)
    host = settings.host or "127.0.0.1"
    free = FreePorts(host, settings.ports) if settings.ports and not settings.first_port else None
    ports = _ports(settings, host, sum(arrangement.ranks), directory, free)
    listen = f"unix:{directory / 'controller.sock'}"
    if settings.is_remote:
        from p4reduce_lab.deploy.certificates import make_certificates

        made = make_certificates(directory, [host])
        given, tls = given | made.variables, made.controller
        # TCP port 0: any.
        listen = format_host_port(host, settings.first_port if free is None else free.tcp())
    switches = _DeployedSwitches(settings, arrangement, directory, ports, key_file)
    given[variables.INTERFACE] = switches.interface()
    serve = serve_options(listen, tls, slots=settings.slots, lease=settings.lease)
    where = "Unix ports" if settings.unix else "UDP ports"
    at = f" at {settings.host} (TLS)" if settings.is_remote else " on this host"
    return Parts(
        f"{arrangement.text} with {where} for {settings.ranks} ranks{at}",
        switches.by_name,
        [*serve, *_switch_options(settings, switches)],
        given,
        tls,
    )


def _ports(
    settings: DeploySettings, host: str, count: int, directory: Path, free: FreePorts | None
) -> Mapping[int, str]:
    """Choose the sockets of all switches' ports, one switch after the other."""
    if settings.unix:
        return {number: f"unix:{directory}/port{number}.sock" for number in range(1, count + 1)}
    if free is not None:
        return UdpPorts(host, count, free.udp(count)[0])
    if not settings.host and not settings.first_port:
        return udp_ports(count)
    return UdpPorts(host, count, free_udp_ports(host, count, settings.first_port))


class _DeployedSwitches:
    """The network's embedded switches, and how workers and the controller find them.

    Args:
        settings: of the network.
        arrangement: which switch has how many ranks.
        directory: for sockets and logs.
        addresses: of the ports, by number from 1 on, rank 0's first.
        key_file: that of UDP ports; None: there are none.
    """

    def __init__(
        self,
        settings: DeploySettings,
        arrangement: Arrangement,
        directory: Path,
        addresses: Mapping[int, str],
        key_file: Path | None,
    ) -> None:
        self.arrangement = arrangement
        self.by_name: dict[str, EmbeddedSwitch] = {}
        self._settings = settings
        self._directory = directory
        self._addresses = addresses
        first = 1
        for name, ranks in zip(arrangement.names, arrangement.ranks, strict=True):
            own = {1 + n: addresses[first + n] for n in range(ranks)}
            if arrangement.root:
                own[_UPLINK] = f"unix-to:{self._link(name)}"
            self._add(name, own, key_file)
            first += ranks
        if arrangement.root:
            links = {1 + n: f"unix:{self._link(name)}" for n, name in enumerate(arrangement.names)}
            self._add(arrangement.root, links, None)

    def interface(self) -> str:
        """The variable by which workers find their ports."""
        names, ranks = self.arrangement.names, self.arrangement.ranks
        if self.arrangement.root or len(names) == 1:
            return self._of_ranks_from(1)
        firsts = [1 + sum(ranks[:number]) for number in range(len(names))]
        return ",".join(
            f"{name}={self._of_ranks_from(first)}"
            for name, first in zip(names, firsts, strict=True)
        )

    def topology(self) -> Path:
        """Write the file of a tree for the controller."""
        root = self.arrangement.root
        tables = [
            switch_table(name, switch.grpc_address, 0 if name == root else len(switch.ports) - 1)
            for name, switch in self.by_name.items()
        ]
        tables += [
            link_table(root, number, name, _UPLINK)
            for number, name in enumerate(self.arrangement.names, start=1)
        ]
        file = self._directory / "net.toml"
        file.write_text(topology_text(tables))
        return file

    def _of_ranks_from(self, first: int) -> str:
        """Of one switch: rank 0's port is `first`, and the others follow."""
        if self._settings.unix:
            # Of switches side by side each has a row of its own in one directory: by links.
            if first == 1:
                return f"unix:{self._directory}/port{{port}}.sock"
            beside = self._directory / f"from{first}"
            beside.mkdir(exist_ok=True)
            for number in range(first, first + self._settings.ranks):
                link = beside / f"port{number - first + 1}.sock"
                if not link.is_symlink():
                    link.symlink_to(self._directory / f"port{number}.sock")
            return f"unix:{beside}/port{{port}}.sock"
        host, port = parse_host_port(self._addresses[first].removeprefix("udp:"))
        return f"udp:{format_host_port(host, port - 1)}+{{port}}"

    def _link(self, leaf: str) -> Path:
        return self._directory / f"link-{leaf}.sock"

    def _add(self, name: str, ports: dict[int, str], key_file: Path | None) -> None:
        own = self._directory / name
        own.mkdir(exist_ok=True)
        self.by_name[name] = EmbeddedSwitch(
            own, ports, key_file=key_file, captures=self._captures(name)
        )

    def _captures(self, name: str) -> Path | None:
        if not self._settings.captures:
            return None
        everything = Path(self._settings.captures).absolute()
        alone = len(self.arrangement.names) == 1 and not self.arrangement.root
        return everything if alone else everything / name


def _switch_options(settings: DeploySettings, switches: _DeployedSwitches) -> list[str]:
    if switches.arrangement.root:
        return ["--topology", str(switches.topology())]
    options = ["--ports", f"1-{settings.ranks}"]
    for name, switch in switches.by_name.items():
        called = "" if len(switches.by_name) == 1 else f"{name}="
        options += ["--switch", f"{called}{switch.grpc_address}"]
    return options
