# SPDX-License-Identifier: Apache-2.0
"""Training over UDP ports: exact under loss, and through the loss of the switch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import p4reduce
import pytest
from fault_system import PATIENT_LEASE
from p4reduce.errors import ConfigurationError
from p4reduce.transport import udp
from p4reduce.transport.udp import parse_udp
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.udp_ports import udp_ports
from test_recovery import beside
from worker_system import System, running_system, wait_for

RANKS = 3


@pytest.fixture(scope="module")
def over_udp() -> Iterator[System]:
    ports = udp_ports(RANKS)
    with running_system(
        lambda place: EmbeddedSwitch(place, ports), ports=RANKS, lease=PATIENT_LEASE
    ) as system:
        yield system


@pytest.fixture(params=["machine code", "Python"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(udp, "why_not", lambda: "a test wants Python")


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("faults", [0, 5], indirect=True)
def test_sums_are_exact(over_udp: System, faults: int) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        for size in (1, 256, 5000):
            numbers = np.arange(size, dtype=np.int32) * (comm.rank + 1)
            assert (comm.allreduce(numbers) == np.arange(size) * 6).all()

    over_udp.run(RANKS, work)


@pytest.mark.usefixtures("transport")
def test_a_switch_that_is_started_again(over_udp: System) -> None:
    steps = [0] * RANKS
    last = 1 << 30

    def work(comm: p4reduce.Communicator) -> int:
        numbers = np.full(700, comm.rank + 1, np.int32)
        while steps[comm.rank] < last:
            assert (comm.allreduce(numbers) == 6).all()
            steps[comm.rank] += 1
        return comm.stats.recoveries

    def restart() -> None:
        nonlocal last
        wait_for(lambda: min(steps) > 3, "they sum up")
        over_udp.restart_switch()
        at = max(steps)
        wait_for(lambda: min(steps) > at + 3, "they sum up again")
        last = max(steps) + 20

    results: list[list[int]] = []
    beside(lambda: results.append(over_udp.run(RANKS, work)), restart)
    assert results == [[1] * RANKS]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("host:7001", ("host", 7001)),
        ("host:7001+3", ("host", 7004)),
        ("[::1]:7001", ("::1", 7001)),
    ],
)
def test_addresses(text: str, where: tuple[str, int]) -> None:
    assert parse_udp(text) == where


@pytest.mark.parametrize(
    "text",
    ["host", "host:", ":7001", "host:x", "host:65535+1", "host:0", "::1:7001", "[::1]", "[x]:1"],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"udp:"):
        parse_udp(text)
