# SPDX-License-Identifier: Apache-2.0
"""A star of Mininet hosts around one switch, with plain veth pairs and no Open vSwitch.

The switch's process runs beside this one, on the pairs' near ends (:meth:`MininetNetwork.row`);
each host is a network namespace with the far end as its ``eth0``. Workers are started inside by
prefixing their command (:meth:`MininetNetwork.prefix`).

Mininet comes from Debian's or Ubuntu's package, for the system's Python; being pure Python it
works from a virtual environment too, once its folder is at the end of the path.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType
from typing import Any

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks import namespaces
from p4reduce_lab.networks.started import StartedNetwork
from p4reduce_lab.networks.veth import prepare
from p4reduce_lab.topology import PortRow
from p4reduce_lab.units import rate_as_typed

SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")
SUBNET = "10.0.0"
PREFIX_LENGTH = 24
SWITCH_IP = f"{SUBNET}.254"
HOST_INTERFACE = "eth0"
MAX_HOSTS = 64
MAX_BANDWIDTH = 1000.0  # Mbit/s; what Mininet's TCLink takes
TOOLS = {"mnexec": "mininet", "ip": "iproute2", "ethtool": "ethtool"}


def subnet(switch: int = 0) -> str:
    """Return the first three numbers of the addresses at a switch, numbered from 0."""
    return f"10.0.{switch}"


def switch_ip(switch: int = 0) -> str:
    """Return the address of a switch."""
    return f"{subnet(switch)}.254"


def host_interface(switch: int = 0) -> str:
    """Return the name of a host's link to a switch."""
    return f"eth{switch}"


def _mac(switch: int, number: int) -> str:
    """The MAC address of a host's link to a switch."""
    return f"02:00:00:00:{switch + 1:02x}:{number:02x}"


def check_bandwidth(bandwidth: float | None) -> None:
    """Refuse a rate that no link can have. Raises LabError."""
    if bandwidth is not None and not 0 < bandwidth <= MAX_BANDWIDTH:
        raise LabError(
            f"a bandwidth of {rate_as_typed(bandwidth * 1e6)}; it must be above 0 and at most "
            f"{rate_as_typed(MAX_BANDWIDTH * 1e6)}"
        )


def unavailable() -> str | None:
    """Return why Mininet cannot run here, and what to do; None if it can."""
    if (reason := namespaces.unavailable(TOOLS, "Mininet needs")) is not None:
        return reason
    try:
        _modules()
    except ImportError as error:
        if error.name == "mininet":
            return f"{error}: apt-get install mininet"
        return (
            f"Mininet does not work with Python {platform.python_version()} ({error}): make the "
            "environment with the Python of the distribution, /usr/bin/python3 -m venv"
        )
    return None


def _modules() -> dict[str, ModuleType]:
    """Import what we use of Mininet, from where Debian's package puts it."""
    if str(SYSTEM_PACKAGES) not in sys.path:
        sys.path.append(str(SYSTEM_PACKAGES))
    logger_class = logging.getLoggerClass()
    with _distutils():
        import mininet.cli
        import mininet.link
        import mininet.log
        import mininet.net
        import mininet.node

    # Mininet makes every logger of the process one of its own, with its own level.
    logging.setLoggerClass(logger_class)
    return {
        "cli": mininet.cli,
        "link": mininet.link,
        "log": mininet.log,
        "net": mininet.net,
        "node": mininet.node,
    }


class _StrictVersion(tuple[int, ...]):
    """A version such as "2.17.0", as Mininet compares those of Open vSwitch."""

    def __new__(cls, text: str) -> _StrictVersion:
        return super().__new__(cls, map(int, text.split(".")))


@contextmanager
def _distutils() -> Iterator[None]:
    """Provide the one class of distutils that Mininet imports, where Python has none: from 3.12."""
    if importlib.util.find_spec("distutils") is not None:
        yield
        return
    package, version = ModuleType("distutils"), ModuleType("distutils.version")
    vars(version)["StrictVersion"] = _StrictVersion
    made = {"distutils": package, "distutils.version": version}
    sys.modules |= made
    try:
        yield
    finally:
        for name in made:  # others look whether it is there
            del sys.modules[name]


class MininetNetwork(StartedNetwork):
    """``hosts`` hosts named h1, h2, … with the addresses 10.0.0.1, 10.0.0.2, …

    Args:
        hosts: The number of hosts, 1 to 64.
        bandwidth: Of each link and in each direction, in Mbit/s; None for as fast as it goes.
        switches: How many; each host has a link to each, the second one with the addresses
            10.0.1.1, 10.0.1.2, … and so on.

    Raises:
        UnavailableError: Mininet cannot run here.
        LabError: an argument is out of range, or the network cannot be made as asked.
    """

    def __init__(self, hosts: int, bandwidth: float | None = None, switches: int = 1) -> None:
        if (reason := unavailable()) is not None:
            raise UnavailableError(f"no Mininet network: {reason}")
        if not 1 <= hosts <= MAX_HOSTS:
            raise LabError(f"{hosts} hosts; Mininet networks here have 1 to {MAX_HOSTS}")
        check_bandwidth(bandwidth)
        self._hosts = hosts
        self._bandwidth = bandwidth
        self._mininet = _modules()
        self._net: Any = None
        self._switches = switches
        self._ports: list[dict[int, str]] = [{} for _ in range(switches)]

    def row(self, switch: int = 0) -> PortRow:
        """Return a switch's ports: their interfaces in this namespace, and who is at each."""
        ports = self._ports[switch]
        macs = {number: _mac(switch, number) for number in ports}
        return PortRow(ports, host_interface(switch), macs, switch_ip(switch))

    def start(self) -> None:
        """Make hosts and links."""
        # Its standard error is no measure: tc's warnings are in it. What matters is checked below.
        self._mininet["log"].setLogLevel("critical")
        link, node = self._mininet["link"], self._mininet["node"]
        self._net = self._mininet["net"].Mininet(controller=None, build=False, autoSetMacs=True)
        try:
            # Mininet's own commands expect a Switch in the middle. The user of this network
            # starts the process on `row` that makes it one.
            middle = [
                self._net.addSwitch(f"s{number + 1}", cls=_process_switch(node.Switch))
                for number in range(self._switches)
            ]
            kind: dict[str, Any] = {"cls": link.Link}
            if self._bandwidth is not None:
                kind = {"cls": link.TCLink, "bw": self._bandwidth}
            for number in range(1, self._hosts + 1):
                host = self._net.addHost(
                    f"h{number}",
                    ip=f"{SUBNET}.{number}/{PREFIX_LENGTH}",
                    mac=_mac(0, number),
                )
                for which, switch in enumerate(middle):
                    self._link(host, number, which, switch, kind)
            self._net.build()
            for which in range(self._switches):
                for number, near_end in self._ports[which].items():
                    host = self._net.get(f"h{number}")
                    if which:
                        address = f"{subnet(which)}.{number}/{PREFIX_LENGTH}"
                        host.setIP(address, intf=host_interface(which))
                    prepare(near_end)
                    prepare(host_interface(which), prefix=self._prefix_of(host))
            self._check_bandwidth()
        except BaseException:
            self.stop()
            raise

    def _link(self, host: Any, number: int, which: int, switch: Any, kind: dict[str, Any]) -> None:
        # Named by this process, so that several networks can be up at once.
        near_end = f"p4r{os.getpid()}{ascii_lowercase[which] if which else ''}-{number}"
        self._net.addLink(
            host,
            switch,
            intfName1=host_interface(which),
            intfName2=near_end,
            addr1=_mac(which, number),
            **kind,
        )
        self._ports[which][number] = near_end

    def prefix(self, rank: int) -> list[str]:
        """Return the prefix that runs a command on the host of this rank, h(rank+1)."""
        return self._prefix_of(self._net.get(f"h{rank + 1}"))

    def address(self, rank: int) -> IPv4Interface:
        """The address of the host of this rank."""
        return IPv4Interface(f"{SUBNET}.{rank + 1}/{PREFIX_LENGTH}")

    def prompt(self) -> None:
        """Mininet's own prompt, until the user leaves it."""
        self._mininet["log"].setLogLevel("info")  # what the prompt prints, it logs
        self._mininet["cli"].CLI(self._net)

    def stop(self) -> None:
        """Take the network down. What still runs on the hosts ends with their namespaces."""
        if self._net is None:
            return
        net, self._net = self._net, None
        self._ports = [{} for _ in self._ports]
        net.stop()

    @staticmethod
    def _prefix_of(host: Any) -> list[str]:
        return ["mnexec", "-a", str(host.pid)]

    def _check_bandwidth(self) -> None:
        """See that the limit is there: where the kernel lacks htb, Mininet carries on without."""
        if self._bandwidth is None:
            return
        for near_end in (name for ports in self._ports for name in ports.values()):
            shown = namespaces.run(["tc", "qdisc", "show", "dev", near_end])
            if "htb" not in shown:
                raise LabError(
                    f"the bandwidth of {near_end} could not be limited to {self._bandwidth:g} "
                    f"Mbit/s (this kernel may lack the htb scheduler); tc says: {shown.strip()}"
                )


def _process_switch(base: type[Any]) -> type[Any]:
    """Mininet's Switch, whose process is started and ended elsewhere."""

    class ProcessSwitch(base):  # type: ignore[misc]
        def start(self, _controllers: object) -> None:
            """Do nothing: see `MininetNetwork.row`."""

    return ProcessSwitch
