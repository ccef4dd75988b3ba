# SPDX-License-Identifier: Apache-2.0
"""Nothing needs Linux at import, and a worker at a UDP port never does: as on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import without_linux
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.udp_ports import udp_ports
from worker_system import DEADLINE, System

RANKS = 3


def command(what: str) -> list[str]:
    return [sys.executable, without_linux.__file__, what]


@pytest.mark.long
def test_nothing_needs_linux_at_import() -> None:
    done = subprocess.run(
        command("import"), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(without_linux.names())} modules\n"
    assert len(without_linux.names()) > 250, "they are all looked at"


def test_workers_sum_over_udp_without_linux() -> None:
    with tempfile.TemporaryDirectory(prefix="p4r-") as name:
        directory = Path(name)
        (directory / "switch").mkdir()
        switch = EmbeddedSwitch(directory / "switch", udp_ports(RANKS))
        system = System(switch, directory, RANKS)
        try:
            ranks = [
                subprocess.Popen(
                    command("sum"),
                    env={
                        **os.environ,
                        "P4REDUCE_CONTROLLER": system.controller,
                        "P4REDUCE_INTERFACE": switch.interface,
                        "P4REDUCE_RANK": str(rank),
                        "P4REDUCE_WORLD_SIZE": str(RANKS),
                    },
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(RANKS)
            ]
            said = [one.communicate(timeout=DEADLINE) for one in ranks]
        finally:
            system.close()
    for rank, (output, errors) in enumerate(said):
        assert ranks[rank].returncode == 0, errors
        why, refusal, exact = output.splitlines()
        assert why == "machine code is for Linux, and this is darwin: Python does the same"
        assert refusal.startswith("interface 'eth0' requires Linux; this is darwin: only UDP")
        assert exact == f"rank {rank} of {RANKS}: exact on darwin"
