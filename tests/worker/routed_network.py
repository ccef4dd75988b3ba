# SPDX-License-Identifier: Apache-2.0
"""Machines in different networks, imitated by namespaces: all there is between them are routers.

    a 10.1.0.2 -- rack -- (MTU 1480, as of a tunnel) -- core -- 10.2.0.2 b
                                                          |
                                                          +---- 10.9.0.2 s

All other links take jumbo frames. The embedded switch, with UDP ports, and its controller, by TLS,
are on s. Whatever runs on a machine runs as an ordinary user, who has not got any right of root's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from p4reduce_lab.networks import namespaces
from p4reduce_lab.networks.namespaces import Namespace, run
from p4reduce_lab.processes.children import ChildProcess, Processes

MACHINES = {"a": "10.1.0.2", "b": "10.2.0.2", "s": "10.9.0.2"}
JUMBO, TUNNEL = 9000, 1480
PORTS = 4
DEADLINE = 240.0  # seconds; a test fails by it, and passes long before
MAKE_CERTIFICATES = Path(__file__).parents[2] / "tools" / "make-certificates"
USER = 65534  # nobody
# In a user namespace, so that files are this user's own: here the interpreter may be root's alone.
AS_USER = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}", "--"]
AS_USER += ["setpriv", "--no-new-privs", "--pdeathsig", "KILL", "--"]
# Machine, its interface and address; the same of the other end; what fits through.
_LINKS = [
    ("a", "eth0", "10.1.0.2", "rack", "to-a", "10.1.0.1", JUMBO),
    ("rack", "to-core", "10.3.0.1", "core", "to-rack", "10.3.0.2", TUNNEL),
    ("b", "eth0", "10.2.0.2", "core", "to-b", "10.2.0.1", JUMBO),
    ("s", "eth0", "10.9.0.2", "core", "to-s", "10.9.0.1", JUMBO),
]
_ROUTES = [
    ("a", "default", "10.1.0.1"),
    ("rack", "default", "10.3.0.2"),
    ("core", "10.1.0.0/24", "10.3.0.1"),
    ("b", "default", "10.2.0.1"),
    ("s", "default", "10.9.0.1"),
]
_ROUTERS = ("rack", "core")


def unavailable() -> str | None:
    """Say why there can be no such network here; None: there can."""
    tools = {**namespaces.TOOLS, "setpriv": "util-linux", "openssl": "openssl"}
    if (reason := namespaces.unavailable(tools)) is not None:
        return reason
    if subprocess.run([*AS_USER, "true"], capture_output=True, check=False).returncode:
        return "this kernel does not let us make user namespaces"
    return None


class RoutedNetwork:
    """The network, with switch and controller.

    Args:
        processes: with which it goes.
        directory: for sockets, certificates, key and logs.

    Attributes:
        variables: by which ranks find switch and controller.
    """

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._directory = directory
        self._processes = processes
        self._names: dict[str, Namespace] = {}
        at = MACHINES["s"]
        key = directory / "udp.key"
        self.variables = {
            "P4REDUCE_CONTROLLER": f"{at}:9600",
            "P4REDUCE_INTERFACE": f"udp:{at}:7001+{{rank}}",
            "P4REDUCE_UDP_KEY_FILE": str(key),
            "P4REDUCE_TLS_CERT": str(directory / "worker.pem"),
            "P4REDUCE_TLS_KEY": str(directory / "worker.key"),
            "P4REDUCE_TLS_CA": str(directory / "ca.pem"),
        }
        names = [f"controller={at}", "worker"]
        run([str(MAKE_CERTIFICATES), str(directory), *names])
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        self._wire()
        self._start_services()

    def start(
        self, machine: str, name: str, command: Sequence[str], **variables: str
    ) -> ChildProcess:
        """Start a command on a machine, as an ordinary user; its output is in NAME.log."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("P4REDUCE_")}
        clean = ["env", "-i", *(f"{key}={value}" for key, value in {**kept, **variables}.items())]
        return self._processes.start(
            name, [*self._names[machine].prefix, *AS_USER, *clean, *command], log=self.log(name)
        )

    def log(self, name: str) -> Path:
        """Where a command's output is."""
        return self._directory / f"{name}.log"

    def wait(self, children: Sequence[ChildProcess]) -> None:
        """Wait until all of them have ended well, and drop them."""
        self._wait(lambda: all(child.returncode is not None for child in children), children)
        self._processes.check(may_finish=children)
        for child in children:
            self._processes.kill(child)  # with what it has started

    def _wait(self, condition: Callable[[], bool], may_finish: Sequence[ChildProcess] = ()) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            self._processes.check(may_finish=may_finish)
            assert time.monotonic() < end, f"not within {DEADLINE} s"
            time.sleep(0.05)

    def _wire(self) -> None:
        for name in (*MACHINES, *_ROUTERS):
            self._names[name] = Namespace(self._processes, name)
        for one, own, address, other, theirs, their_address, mtu in _LINKS:
            peer = ["peer", "name", theirs, "netns", str(self._names[other].pid)]
            self._names[one].run("ip", "link", "add", own, "type", "veth", *peer)
            for name, interface, ip in ((one, own, address), (other, theirs, their_address)):
                self._names[name].run("ip", "address", "add", f"{ip}/24", "dev", interface)
                link = ["ip", "link", "set", "dev", interface, "mtu", str(mtu), "up"]
                self._names[name].run(*link)
        for name in _ROUTERS:
            self._names[name].run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for name, where, way in _ROUTES:
            self._names[name].run("ip", "route", "add", where, "via", way)

    def _start_services(self) -> None:
        directory = self._directory
        switch_ready, ready = directory / "switch.ready", directory / "controller.ready"
        module = [sys.executable, "-m"]
        switch = [*module, "p4reduce_switch", "--grpc-addr", "127.0.0.1:9559"]
        switch += ["--port", f"1-{PORTS}=udp:0.0.0.0:7001"]
        switch += ["--udp-key-file", self.variables["P4REDUCE_UDP_KEY_FILE"]]
        self.start("s", "switch", [*switch, "--ready-file", str(switch_ready)])
        self._wait(switch_ready.exists)
        serve = [*module, "p4reduce_controller", "serve", "--switch", "127.0.0.1:9559"]
        serve += ["--ports", f"1-{PORTS}", "--listen", "0.0.0.0:9600"]
        serve += ["--tls-cert", str(directory / "controller.pem")]
        serve += ["--tls-key", str(directory / "controller.key")]
        serve += ["--tls-ca", str(directory / "ca.pem"), "--lease", "20"]
        serve += ["--state-dir", str(directory / "state"), "--ready-file", str(ready)]
        self.start("s", "controller", serve)
        self._wait(ready.exists)


@contextlib.contextmanager
def routed_network() -> Iterator[RoutedNetwork]:
    """The network for as long as the `with` block runs."""
    with tempfile.TemporaryDirectory(prefix="p4r-") as name, Processes() as processes:
        yield RoutedNetwork(processes, Path(name))


def torchrun_variables(
    node: int, local_rank: int, nodes: int = 2, each: int = 2, master_port: int = 29500
) -> Mapping[str, str]:
    """What torchrun sets for a rank of one of `nodes` nodes with `each` ranks."""
    rank, size = node * each + local_rank, nodes * each
    return {
        "MASTER_ADDR": MACHINES["a"],
        "MASTER_PORT": str(master_port),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(each),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": str(size),
        "TORCHELASTIC_RUN_ID": "routed",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
