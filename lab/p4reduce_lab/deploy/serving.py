# SPDX-License-Identifier: Apache-2.0
"""A network from start to end, for `p4reduce.launch`, the ranks of a job, and the command line.

Runs in the main thread of a process: the kernel ends the children of the thread that made them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.deploy.whole import deployed
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.services import Parts, Services

PAUSE = 0.1  # seconds between two looks at the processes
_NEEDED = ("click", "cryptography", "p4", "rich")


def check_packages() -> None:
    """Raise UnavailableError where switch and controller lack a package."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise UnavailableError(
            f"the host of the switch needs the packages {', '.join(missing)}, which are not "
            "installed here: pip install 'p4reduce[lab]'"
        )


def serve(
    settings: DeploySettings,
    ready: Callable[[Services], None],
    news: Callable[[Services, str], None],
    wait: Callable[[Services], bool],
) -> None:
    """Start a network, and keep it up until `wait` ends it.

    Args:
        settings: of the network.
        ready: called when workers can join.
        news: called with what has happened.
        wait: waits a moment; returns whether the network is to end.

    Raises:
        LabError: something is missing, did not start, or ends again and again.
    """
    check_packages()
    # Variables of another network, which this process inherited, do not apply to this one.
    for name in [name for name in os.environ if name.startswith("P4REDUCE_TLS_")]:
        del os.environ[name]
    with _directories(settings) as (directory, logs):
        run(deployed(settings, directory), directory, logs, ready, news, wait)


def run(
    parts: Parts,
    directory: Path,
    logs: Path,
    ready: Callable[[Services], None],
    news: Callable[[Services, str], None],
    wait: Callable[[Services], bool],
) -> None:
    """Start the parts of a network on this host, and keep them up. The rest is as for `serve`."""
    services = Services(parts, directory, logs)
    try:
        services.start()
        services.wait_ready()
        ready(services)
        while not wait(services):
            for what in services.mend():
                news(services, what)
    finally:
        services.close()


@contextmanager
def _directories(settings: DeploySettings) -> Iterator[tuple[Path, Path]]:
    """Make those for sockets and for logs."""
    with run_directory() as directory:
        if not settings.logs:
            logs = directory / "logs"
            logs.mkdir()
            yield directory, logs
            return
        with results_directory(Path(settings.logs), replace=("*.log",)) as logs:
            yield directory, logs
