# SPDX-License-Identifier: Apache-2.0
"""PCs at an Ethernet switch, imitated by namespaces: each has one link, and a /tmp of its own.

As Debian does, each PC's /etc/hosts gives its own name the address 127.0.1.1, and knows the others
by theirs. The Ethernet switch is Linux's bridge. Offloads are as the kernel has them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from p4reduce_lab.networks.linked import BRIDGE, BridgedNetwork

INTERFACE = "eth0"
_MASTER_PORT = 29400  # torchrun's own default


class HomeNetwork(BridgedNetwork):
    """Hosts "pc1", "pc2" and so on, and the Ethernet switch between them.

    Args:
        hosts: how many, 1 to 64.
        rate: as for `LinkedNetwork`.

    Attributes:
        addresses: of the hosts.
    """

    def __init__(self, hosts: int, rate: float | None = None) -> None:
        super().__init__([f"pc{number + 1}" for number in range(hosts)], "bridge", rate)
        self.addresses = [f"10.3.0.{number + 1}" for number in range(hosts)]

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
        return self._hosts[host].run(*command)

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
        host, port = self._hosts[number], self._add_pair(number, INTERFACE)
        self._middle.run("ip", "link", "set", "dev", port, "master", BRIDGE, "up")
        host.run("ip", "address", "add", f"{self.addresses[number]}/24", "dev", INTERFACE)
        host.run("ip", "link", "set", "dev", INTERFACE, "up")

    def _ends(self, number: int) -> list[tuple[list[str], str]]:
        return [(self._middle.prefix, f"port{number + 1}"), (self.prefix(number), INTERFACE)]


def _seen_of_tmp() -> list[str]:
    """Return the directory of /tmp, if any, that has this checkout: all hosts see it."""
    places = [Path(path).resolve().parts for path in (sys.prefix, __file__)]
    return sorted({shlex.quote(f"/tmp/{parts[2]}") for parts in places if parts[1] == "tmp"})
