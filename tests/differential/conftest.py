# SPDX-License-Identifier: Apache-2.0
"""Both switches side by side, each between veth pairs of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.switches import bmv2

sys.path.append(str(Path(__file__).resolve().parent.parent / "packet"))

from differential_targets import KINDS, Pair
from packet_testbed import PORTS


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    """Both switches, restarted where one goes down."""
    if reason := bmv2.unavailable():
        pytest.skip(reason)
    with ExitStack() as cleanup:
        wires = {kind: cleanup.enter_context(quiet_veths(len(PORTS))) for kind in KINDS}
        pair = Pair(wires)
        cleanup.callback(pair.close)
        yield pair


def quiet_veths(count: int) -> VethPorts:
    """Pairs on which the kernel says nothing of its own: it would answer ARP requests for this
    machine's addresses, which may come out of a port or go into one."""
    veths = VethPorts(count)
    for name in (*veths.switch_side.values(), *veths.worker_side.values()):
        for command in (("address", "flush", "dev", name), ("link", "set", name, "arp", "off")):
            subprocess.run(["ip", *command], check=True, timeout=120)
    return veths
