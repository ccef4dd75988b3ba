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
from typing import IO, Any

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
        runs, outputs = [], []
        for host in range(len(network.names)):
            # Files, as a pipe that nobody reads meanwhile would stop its ranks.
            output = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            run = subprocess.Popen(
                network.torchrun(host, program, each=each),
                env={**os.environ, **variables},
                stdout=output,
                stderr=output,
            )
            stack.callback(run.wait)
            stack.callback(run.kill)
            runs.append(run)
            outputs.append(output)
        try:
            codes = [run.wait(max(end - time.monotonic(), 0.1)) for run in runs]
            wrong = "failed" if any(codes) else ""
        except subprocess.TimeoutExpired:
            wrong = f"took more than {timeout:.0f} s"
        if wrong:
            raise LabError(f"ranks on {len(runs)} hosts {wrong}:\n{''.join(map(_end, outputs))}")
        return reports_in(Path(directory), each * len(runs))


def _end(output: IO[str]) -> str:
    output.seek(0)
    return output.read()[-6000:]  # torchrun adds some 3,000 of its own
