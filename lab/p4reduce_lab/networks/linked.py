# SPDX-License-Identifier: Apache-2.0
"""What networks of namespaces share: hosts, each with a link of a limited rate to the middle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.limits import MAX_RANKS
from p4reduce_lab.networks.links import check_rate, set_congestion, set_rate, unavailable
from p4reduce_lab.networks.namespaces import Namespace
from p4reduce_lab.networks.started import StartedNetwork
from p4reduce_lab.processes.children import Processes

BRIDGE = "bridge0"


class LinkedNetwork(StartedNetwork):
    """Hosts in namespaces, and a namespace in the middle that joins them.

    Nothing is left behind, however a run ends (`namespaces`).

    Args:
        names: of the hosts, 1 to 64.
        middle: host name of the namespace in the middle.
        rate: of each link and in each direction, in Mbit/s; None: not limited. See `set_rate`.
        congestion: the hosts' TCP congestion control; None: as this machine has it.

    Attributes:
        names: of the hosts.
        congestion: what TCP uses on them.

    Raises:
        UnavailableError: it is not available here; says what is missing.
        LabError: an argument is out of range, or a tool failed.
    """

    def __init__(
        self,
        names: Sequence[str],
        middle: str,
        rate: float | None,
        congestion: str | None = None,
    ) -> None:
        if (reason := unavailable()) is not None:
            raise UnavailableError(f"no network of namespaces: {reason}")
        if not 1 <= len(names) <= MAX_RANKS:
            raise LabError(f"{len(names)} hosts; networks here have 1 to {MAX_RANKS}")
        if rate is not None:
            check_rate(rate)
        self.names = names
        self.congestion = ""
        self._middle_name = middle
        self._rate = rate
        self._wanted_congestion = congestion
        self._processes = Processes()
        self._hosts: list[Namespace] = []

    def start(self) -> None:
        """Make namespaces and links."""
        try:
            self._middle = Namespace(self._processes, self._middle_name)
            self._join()
            for number, name in enumerate(self.names):
                self._hosts.append(Namespace(self._processes, name, self._mounts(number)))
            for number in range(len(self.names)):
                self._link(number)
            prefixes = [host.prefix for host in self._hosts]
            self.congestion = set_congestion(prefixes, self._wanted_congestion)
            self.set_rate(self._rate)
        except BaseException:
            self.stop()
            raise

    def set_rate(self, rate: float | None) -> None:
        """Limit all links in each direction to this rate, in Mbit/s of whole Ethernet frames."""
        set_rate([end for number in range(len(self.names)) for end in self._ends(number)], rate)

    def prefix(self, number: int) -> list[str]:
        """Return the prefix that runs a command on a host, such as that of a rank."""
        return self._hosts[number].prefix

    def stop(self) -> None:
        """Take it down. What still runs in the namespaces loses its interfaces."""
        self._hosts = []
        self._processes.end(grace=0.0)

    def _mounts(self, number: int) -> str:
        """Return a shell command that mounts what only this host is to see; "": nothing."""
        return ""

    def _add_pair(self, number: int, far: str) -> str:
        """Add a link from a host's interface `far` to the middle; return its name there."""
        near = f"port{number + 1}"
        pair = ["ip", "link", "add", near, "type", "veth", "peer", "name", far]
        self._middle.run(*pair, "netns", str(self._hosts[number].pid))
        return near

    @abstractmethod
    def _join(self) -> None:
        """Let the namespace in the middle join what will be linked to it."""

    @abstractmethod
    def _link(self, number: int) -> None:
        """Link a host to the middle."""

    @abstractmethod
    def _ends(self, number: int) -> list[tuple[list[str], str]]:
        """Both ends of a host's links: the prefix of a command there, and the interface."""


class BridgedNetwork(LinkedNetwork):
    """A network whose middle is an Ethernet switch: Linux's bridge."""

    def _join(self) -> None:
        self._middle.run("ip", "link", "add", BRIDGE, "type", "bridge")
        self._middle.run("ip", "link", "set", "dev", BRIDGE, "up")
