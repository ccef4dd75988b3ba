# SPDX-License-Identifier: Apache-2.0
"""torchrun on each host of a `HomeNetwork`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from p4reduce_lab.errors import LabError
from p4reduce_lab.networks.home import INTERFACE, HomeNetwork

TIMEOUT = 300.0  # seconds


def run_on_hosts(
    network: HomeNetwork,
    program: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    each: int = 1,
    timeout: float = TIMEOUT,
) -> list[str]:
    """Run a program on all hosts, and return the lines that its ranks print.

    Args:
        network: the hosts.
        program: what torchrun gets.
        environment: more variables.
        each: ranks of a host.
        timeout: seconds.

    Raises:
        LabError: a rank failed, or the time is up.
    """
    # Gloo takes what the host's name leads to, which is 127.0.1.1.
    variables = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", **(environment or {})}
    end = time.monotonic() + timeout
    with ExitStack() as stack:
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
        except subprocess.TimeoutExpired as late:
            raise LabError(f"ranks on {len(runs)} hosts took {timeout:.0f} s: {late}") from None
    if any(run.returncode for run in runs):
        errors = "".join(error[-2000:] for _, error in said)
        raise LabError(f"ranks on {len(runs)} hosts failed:\n{errors}")
    return [line for output, _ in said for line in output.splitlines()]
