# SPDX-License-Identifier: Apache-2.0
"""A network from start to end, for `p4reduce.launch` and the command line.

Runs in the main thread of a process: the kernel ends the children of the thread that made them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from p4reduce_lab.deploy.services import Services
from p4reduce_lab.deploy.settings import Settings
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.processes.rundir import results_directory, run_directory, shared_directory

_NEEDED = ("click", "p4", "p4runtime_sh", "rich")


def serve(
    settings: Settings,
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
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise UnavailableError(
            f"the host of the switch needs the packages {', '.join(missing)}, which are not "
            "installed here: pip install 'p4reduce[lab]'"
        )
    # Variables of another network, which this process inherited, do not apply to this one.
    for name in [name for name in os.environ if name.startswith("P4REDUCE_TLS_")]:
        del os.environ[name]
    with ExitStack() as stack:
        if settings.part:
            directory = stack.enter_context(shared_directory(settings.shared))
        else:
            directory = stack.enter_context(run_directory())
        if settings.logs:
            # Of a part that is started again, the logs of before stay.
            replace = () if settings.part else ("*.log",)
            own = Path(settings.logs) / settings.part
            logs = stack.enter_context(results_directory(own, replace=replace))
        else:
            logs = directory / "logs"
            logs.mkdir(exist_ok=True)
        services = Services(settings, directory, logs)
        stack.callback(services.close)
        services.start()
        ready(services)
        while not wait(services):
            for what in services.mend():
                news(services, what)
