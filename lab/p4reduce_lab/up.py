# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab up``: a switch and its controller, for workers that the user starts."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from p4reduce_controller.jobs.tokens import OPERATOR_FILE

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.system import STATE_VARIABLE, System
from p4reduce_lab.text import wrapped
from p4reduce_lab.topology import LabTopology


def run_until_signal(choice: LabChoice, topology: LabTopology, output: Path) -> None:
    """Start both, say how to join, and stay until a signal or until one of them ends.

    Args:
        choice: The switch to start.
        topology: The switches; they have a port per rank.
        output: The directory of the logs.

    Raises:
        LabError: one of them ended, or did not start.
    """
    if choice.network == "mininet":
        raise LabError(
            "workers that you start in a shell do not run on Mininet's hosts: start them at the "
            "prompt of `p4reduce-lab lab` (make lab), or use NET=local"
        )
    with (
        results_directory(output, replace=("*.log", "*.pcap")) as logs,
        run_directory() as directory,
        System(choice, directory, logs, topology) as system,
    ):
        system.start()
        system.wait_ready()
        print(wrapped(f"Switch: {choice.text}{topology.text_if_several}"))
        ports, free = topology.ranks, system.switches()[0].slots_free
        text = f"Ports 1 to {ports}, {free} free slots; logs in {output}"
        print(wrapped(text))
        if line := system.show_page():
            print(wrapped(line))
        print("\nIn another shell, workers find it with")
        exports = {**system.variables(), STATE_VARIABLE: str(system.state_directory)}
        for name, value in exports.items():
            print(f"  export {name}={shlex.quote(value)}")
        example = min(4, ports)
        print(f"\nfor example\n  p4reduce-lab exec -n {example} -- python examples/allreduce.py")
        print(wrapped("Each `exec` takes ports that no other has, so several jobs run at once."))
        print("  p4reduce-controller watch\n  p4reduce-controller job list\n")
        token = system.state_directory / OPERATOR_FILE
        print(wrapped(f"job delete takes the operator's token from there too: {token}"))
        print("\nCtrl-C ends it.", flush=True)
        while True:
            system.processes.check()
            time.sleep(POLL)
