# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab lab``: a Mininet network with switch and controller, and Mininet's prompt."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

from p4reduce_common.polling import holds_within
from p4reduce_native.file_lock import lock_file

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import Interrupted, LabError
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE, SWITCH_IP, MininetNetwork
from p4reduce_lab.processes.children import POLL
from p4reduce_lab.processes.rundir import LOCK_FILE, results_directory, run_directory
from p4reduce_lab.system import STATE_VARIABLE, System, own_path
from p4reduce_lab.text import wrapped
from p4reduce_lab.topology import LabTopology

STOP_TIMEOUT = 20.0  # seconds


def run_lab(choice: LabChoice, hosts: int, output: Path) -> None:
    """Start the network, explain it, and stay at Mininet's prompt.

    Raises:
        LabError: something did not start.
    """
    with (
        results_directory(output, replace=("*.log", "*.pcap")) as logs,
        run_directory() as directory,
        System(choice, directory, logs, LabTopology.side_by_side(hosts)) as system,
    ):
        # The hosts' shells are started with this environment, so commands typed there have it.
        os.environ["P4REDUCE_CONTROLLER"] = system.controller_address
        os.environ["P4REDUCE_INTERFACE"] = HOST_INTERFACE
        os.environ[STATE_VARIABLE] = str(system.state_directory)
        os.environ["PATH"] = own_path()
        system.start()
        system.wait_ready()
        print(wrapped(f"Switch: {choice.text}"))
        hosts_text = (
            f"Hosts h1 to h{hosts}; the switch itself is {SWITCH_IP}; logs in {output}. Try:"
        )
        print(wrapped(hosts_text))
        print(f"  h1 ping -c 3 h2                  h1 ping -c 3 {SWITCH_IP}")
        print("  h1 tcpdump -c 10 -w /tmp/h1.pcap &")
        print("  h1 RANK=0 WORLD_SIZE=2 python examples/allreduce.py &")
        print("  h2 RANK=1 WORLD_SIZE=2 python examples/allreduce.py")
        print("  sh p4reduce-controller job list")
        print("`exit`, or `make stop` elsewhere, takes it down.", flush=True)
        # At the prompt Ctrl-C ends what runs there, not the lab.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            assert isinstance(system.network, MininetNetwork)
            system.network.prompt()
        except Interrupted as interruption:
            if interruption.exit_code != 128 + signal.SIGTERM:
                raise
            print("\nTaken down by `make stop`.")
        finally:
            signal.signal(signal.SIGINT, previous)


def stop_lab(output: Path) -> None:
    """End the lab that writes to ``output``, and wait until it has ended.

    Raises:
        LabError: there is none, it is another user's, or it did not end in time.
    """
    path = output / LOCK_FILE
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"no lab has been up in {output}") from None
    except OSError as error:
        raise LabError(
            f"cannot open {path}: {error.strerror}; end the lab as the user who started it"
        ) from None
    try:
        # The lab holds the lock, so the pid in the file is the lab's.
        if _is_free(lock, path):
            raise LabError(f"no lab is up in {output}")
        pid = int(os.pread(lock, 32, 0).decode("ascii").strip() or 0)
        if pid <= 0:
            raise LabError(f"the lab in {output} is just starting: try again")
        os.kill(pid, signal.SIGTERM)
        if not holds_within(STOP_TIMEOUT, lambda: _is_free(lock, path), POLL):
            raise LabError(f"the lab (pid {pid}) has not ended within {STOP_TIMEOUT:g} s")
    finally:
        os.close(lock)
    print(f"The lab (pid {pid}) is down.")


def _is_free(lock: int, path: Path) -> bool:
    try:
        locked = lock_file(lock, path)
    except BlockingIOError:
        return False
    if not locked:  # a lab may be up; its pid may also be another process's by now
        raise LabError(f"files in {path.parent} cannot be locked: end the lab where it is up")
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
