# SPDX-License-Identifier: Apache-2.0
"""torchrun on hosts in network namespaces, as a user types it there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from needed import mark_of, marked
from p4reduce_lab.networks import links
from p4reduce_lab.networks.home import HomeNetwork
from torch_system import DEADLINE, PROGRAMS, clean_environment

REASON = links.unavailable()
STARTED = PROGRAMS / "started.py"


class Torchruns:
    """One torchrun on each host.

    Args:
        network: the hosts.
        environment: of all processes.
        program: with its arguments.
        each: ranks of a host.
        master: the name or address of the first host.
        here: a directory for the output.
        variables: more of the environment.
    """

    def __init__(
        self,
        network: HomeNetwork,
        environment: dict[str, str],
        program: Sequence[str],
        here: Path,
        *,
        each: int = 1,
        master: str = "",
        **variables: str,
    ) -> None:
        self.network = network
        self.environment = {**environment, **variables}
        self.here = here
        self.processes = []
        for host in range(len(network.names)):
            command = network.torchrun(host, program, each=each, master=master)
            with (here / f"host-{host}").open("wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env=self.environment,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def output(self, host: int) -> str:
        return (self.here / f"host-{host}").read_text()

    @property
    def said(self) -> str:
        hosts = range(len(self.processes))
        return "\n".join(f"-- host {host}\n{self.output(host)}" for host in hosts)[-12000:]

    @property
    def records(self) -> list[dict[str, Any]]:
        """What ranks have printed as JSON, in their order."""
        lines = [line for host in range(len(self.processes)) for line in self._lines(host)]
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return sorted(found, key=lambda record: int(record["rank"]))

    def _lines(self, host: int) -> list[str]:
        return self.output(host).splitlines()

    def wait(self) -> list[int]:
        """Wait for all; those that hang are killed, and have a negative code."""
        end = time.monotonic() + DEADLINE
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0.1))
        self.kill()
        return [process.returncode for process in self.processes]

    def until(self, *files: str) -> None:
        """Wait until ranks have written files."""
        end = time.monotonic() + DEADLINE
        while not all((self.here / name).exists() for name in files):
            assert all(one.poll() is None for one in self.processes), self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.05)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def hosts(number: int, rate: float | None = None) -> Iterator[tuple[HomeNetwork, dict[str, str]]]:
    """Hosts, and an environment for processes there. None of these, nor a file, may be left."""
    with HomeNetwork(number, rate) as network:
        with marked() as environment:
            yield network, {**environment, **clean_environment(), **_mark(environment)}
        for host in range(number):
            end = time.monotonic() + DEADLINE
            while left := network.run(host, "sh", "-c", "ls -d /tmp/p4reduce* 2>/dev/null || true"):
                assert time.monotonic() < end, f"left on {network.names[host]}: {left}"
                time.sleep(0.2)


def _mark(environment: dict[str, str]) -> dict[str, str]:
    name, _, value = mark_of(environment).partition("=")
    return {name: value}


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that all hosts see: /tmp is each one's own."""
    with tempfile.TemporaryDirectory(prefix="p4r-home-", dir="/var/tmp") as name:
        yield Path(name)
