# SPDX-License-Identifier: Apache-2.0
"""Ranks at a switch with several cores: told of one port, they use all of them."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.udp_ports import udp_ports
from test_recovery import Training, beside
from worker_system import PORTS, System, wait_for

WORLD = 3
CORES = 2
STEPS = 4


class CoresSystem(System):
    """A switch with two cores, and its controller."""

    def __init__(self, directory: Path, *, udp: bool, cores: int = CORES) -> None:
        (directory / "switch").mkdir()
        self._ready = directory / "switch" / "ready"
        ports: Any = udp_ports(PORTS) if udp else PORTS
        super().__init__(EmbeddedSwitch(directory / "switch", ports, cores=cores), directory)

    def kill_core(self, core: int) -> None:
        facts = json.loads(self._ready.read_text())
        os.kill(facts["cores"][core]["pid"], signal.SIGKILL)

    def switches(self) -> list[pb.Switch]:
        request = pb.ListSwitchesRequest()
        return list(self.control.call(self.control.stub.ListSwitches, request).switches)


def running(*, udp: bool, cores: int = CORES) -> Iterator[CoresSystem]:
    # pytest's own directories have paths too long for Unix sockets.
    with tempfile.TemporaryDirectory(prefix="p4r-") as name:
        system = CoresSystem(Path(name), udp=udp, cores=cores)
        try:
            yield system
        finally:
            system.close()


@pytest.fixture(scope="module", params=["unix", "udp"])
def system(request: pytest.FixtureRequest) -> Iterator[CoresSystem]:
    yield from running(udp=request.param == "udp")


@pytest.fixture(scope="module")
def one_core() -> Iterator[CoresSystem]:
    yield from running(udp=False, cores=1)


def test_the_controller_has_a_switch_for_each_core(system: CoresSystem) -> None:
    found = system.switches()
    assert [(each.name, each.device_id) for each in found] == [("switch", 1), ("switch.core1", 2)]
    assert found[0].address == found[1].address
    assert found[0].ports == found[1].ports
    assert (found[0].ip, found[0].mac) != (found[1].ip, found[1].mac)
    assert all(each.connected and each.primary for each in found)


def test_ranks_deal_their_blocks_among_the_cores(system: CoresSystem) -> None:
    ones = np.ones(60_000, np.float32)

    def work(comm: p4reduce.Communicator) -> Any:
        assert (comm.allreduce(ones) == WORLD).all()
        blocks = [switch.statistics.blocks for switch in comm.switches]
        with comm.dup() as same:
            assert (same.allreduce(ones) == WORLD).all()
            assert len(same.switches) == CORES
        return blocks

    assert system.run(WORLD, work) == [[117, 118]] * WORLD


@pytest.mark.parametrize("faults", ["", "drop=0.01,duplicate=0.005,seed=7"])
def test_results_are_those_of_one_core(
    system: CoresSystem,
    one_core: CoresSystem,
    faults: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit, also where one frame in a hundred is lost."""
    seed = int(rng.integers(1 << 30))
    expected = one_core.run(WORLD, Training(seed, STEPS))
    if faults:
        monkeypatch.setenv("P4REDUCE_FAULTS", faults)
    found = system.run(WORLD, Training(seed, STEPS))
    assert [results for results, _ in found] == [results for results, _ in expected]
    if faults:
        assert sum(statistics.retransmissions for _, statistics in found)


def test_ranks_go_on_when_a_core_is_killed(
    system: CoresSystem, one_core: CoresSystem, rng: np.random.Generator
) -> None:
    """The switch starts it again."""
    seed = int(rng.integers(1 << 30))
    training = Training(seed, pause=0.02)

    def kill() -> None:
        wait_for(lambda: training.step, "the training has begun")
        time.sleep(float(rng.uniform(0.0, 0.2)))
        system.kill_core(1)
        wait_for(lambda: training.statistics.recoveries, "the ranks go on")
        training.end()

    found = beside(lambda: system.run(WORLD, training), kill)
    expected = one_core.run(WORLD, Training(seed, training.step))
    for results, statistics in found:
        assert results == expected[0][0]
        assert statistics.recoveries
    wait_for(lambda: all(each.connected for each in system.switches()), "the core is back")


def test_a_job_of_a_longer_name_than_parts_have_room_for_is_refused(system: CoresSystem) -> None:
    with pytest.raises(p4reduce.ConfigurationError, match="with several switches"):
        system.init(0, 1, "x" * 90)
