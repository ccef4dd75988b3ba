# SPDX-License-Identifier: Apache-2.0
"""PCs at an Ethernet switch, imitated by namespaces: each has one link, and a /tmp of its own.

As Debian does, each PC's /etc/hosts gives its own name the address 127.0.1.1, and knows the others
by theirs. The Ethernet switch is Linux's bridge. Offloads are as the kernel has them.

Nothing is left behind, however a run ends (`namespaces`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks.links import check_rate, set_rate, unavailable
from p4reduce_lab.networks.namespaces import Namespace
from p4reduce_lab.networks.started import StartedNetwork
from p4reduce_lab.processes.children import Processes

INTERFACE = "eth0"
MAX_HOSTS = 64
_BRIDGE = "bridge0"
_MASTER_PORT = 29400  # torchrun's own default


class HomeNetwork(StartedNetwork):
    """Hosts "pc1", "pc2" and so on, and the Ethernet switch between them.

    Args:
        hosts: how many, 1 to 64.
        rate: of each link and in each direction, in Mbit/s; None: not limited. See `set_rate`.

    Attributes:
        names: of the hosts.
        addresses: of the hosts.

    Raises:
        UnavailableError: it is not available here; says what is missing.
        LabError: an argument is out of range, or a tool failed.
    """

    def __init__(self, hosts: int, rate: float | None = None) -> None:
        if (reason := unavailable()) is not None:
            raise UnavailableError(f"no hosts in namespaces: {reason}")
        if not 1 <= hosts <= MAX_HOSTS:
            raise LabError(f"{hosts} hosts; networks here have 1 to {MAX_HOSTS}")
        if rate is not None:
            check_rate(rate)
        self.names = [f"pc{number + 1}" for number in range(hosts)]
        self.addresses = [f"10.3.0.{number + 1}" for number in range(hosts)]
        self._rate = rate
        self._processes = Processes()
        self._holders: list[Namespace] = []
        self._hub: Namespace | None = None

    def start(self) -> None:
        """Make namespaces, links and bridge."""
        try:
            self._hub = Namespace(self._processes, "bridge")
            self._hub.run("ip", "link", "add", _BRIDGE, "type", "bridge")
            self._hub.run("ip", "link", "set", "dev", _BRIDGE, "up")
            for number, name in enumerate(self.names):
                self._holders.append(Namespace(self._processes, name, self._mounts(number)))
                self._link(number)
            self.set_rate(self._rate)
        except BaseException:
            self.stop()
            raise

    def set_rate(self, rate: float | None) -> None:
        """Limit all links in each direction to this rate, in Mbit/s of whole Ethernet frames."""
        assert self._hub is not None
        hub = [(self._hub.prefix, f"port{number + 1}") for number in range(len(self.names))]
        set_rate([*hub, *((holder.prefix, INTERFACE) for holder in self._holders)], rate)

    def prefix(self, host: int) -> list[str]:
        """Return the prefix that runs a command on a host."""
        return self._holders[host].prefix

    def torchrun(
        self, host: int, program: Sequence[str], *, each: int = 1, master: str = ""
    ) -> list[str]:
        """Return the command that starts torchrun on a host, for a job on all of them.

        Args:
            host: its number.
            program: a script, or "-m" and a module, with arguments.
            each: ranks of a host.
            master: name or address of the first host; "": its address.
        """
        command = [*self.prefix(host), sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", str(len(self.names)), "--node-rank", str(host)]
        command += ["--nproc-per-node", str(each), "--master-port", str(_MASTER_PORT)]
        return [*command, "--master-addr", master or self.addresses[0], *program]

    def run(self, host: int, *command: str) -> str:
        """Run a command on a host, and return what it printed. Raises LabError if it fails."""
        return self._holders[host].run(*command)

    def stop(self) -> None:
        """Take it down. What still runs on the hosts loses its interface."""
        self._holders, self._hub = [], None
        self._processes.end(grace=0.0)

    def _mounts(self, number: int) -> str:
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.names[number]}"]
        others: Sequence[tuple[str, str]] = list(zip(self.addresses, self.names, strict=True))
        lines += [f"{address} {name}" for address, name in others if name != self.names[number]]
        text = "\\n".join([*lines, ""])
        own = "mount -t tmpfs -o mode=1777 none /tmp"
        for fd, seen in enumerate(_seen_of_tmp(), 3):
            # A descriptor leads to what the new /tmp hides; -c: take its name as it is.
            bind = f"mkdir {seen} && mount -c --bind /proc/self/fd/{fd} {seen} && exec {fd}<&-"
            own = f"exec {fd}<{seen} && {own} && {bind}"
        return f"{own} && printf '{text}' > /tmp/.hosts && mount --bind /tmp/.hosts /etc/hosts"

    def _link(self, number: int) -> None:
        assert self._hub is not None
        hub, holder, port = self._hub, self._holders[number], f"port{number + 1}"
        pair = ["ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE]
        hub.run(*pair, "netns", str(holder.pid))
        hub.run("ip", "link", "set", "dev", port, "master", _BRIDGE, "up")
        holder.run("ip", "address", "add", f"{self.addresses[number]}/24", "dev", INTERFACE)
        holder.run("ip", "link", "set", "dev", INTERFACE, "up")


def _seen_of_tmp() -> list[str]:
    """Return the directory of /tmp, if any, that has this checkout: all hosts see it."""
    places = [Path(path).resolve().parts for path in (sys.prefix, __file__)]
    return sorted({shlex.quote(f"/tmp/{parts[2]}") for parts in places if parts[1] == "tmp"})
