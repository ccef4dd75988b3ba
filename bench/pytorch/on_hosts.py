# SPDX-License-Identifier: Apache-2.0
"""torchrun on each host of a `HomeNetwork`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from p4reduce_lab.errors import LabError
from p4reduce_lab.networks.home import INTERFACE, HomeNetwork

from bench.rank import command
from bench.ranks import reports_in

TIMEOUT = 300.0  # seconds


def run_on_hosts(
    network: HomeNetwork,
    function: Callable[..., Any],
    environment: Mapping[str, str] | None = None,
    *,
    each: int = 1,
    timeout: float = TIMEOUT,
    **given: Any,
) -> list[Any]:
    """Call a function in each rank on all hosts, and return what the ranks returned.

    The function is of a module's top level, and its keywords are `given`. A host has `each` ranks.

    Raises:
        LabError: a rank failed, or the time is up.
    """
    # Gloo takes what the host's name leads to, which is 127.0.1.1.
    variables = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **(environment or {})}
    end = time.monotonic() + timeout
    with ExitStack() as stack:
        # /tmp is each host's own.
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp"))
        program = command(function, given, f"{directory}/rank{{rank}}.json")
        runs = []
        for host in range(len(network.names)):
            run = subprocess.Popen(
                network.torchrun(host, program, each=each),
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(run.wait)
            stack.callback(run.kill)
            runs.append(run)
        try:
            said = [run.communicate(timeout=max(end - time.monotonic(), 0.1)) for run in runs]
        except subprocess.TimeoutExpired:
            raise LabError(f"ranks on {len(runs)} hosts took more than {timeout:.0f} s") from None
        if any(run.returncode for run in runs):
            errors = "".join(error[-2000:] for _, error in said)
            raise LabError(f"ranks on {len(runs)} hosts failed:\n{errors}")
        return reports_in(Path(directory), each * len(runs))
