# SPDX-License-Identifier: Apache-2.0
"""One switch and one controller for all tests of whole collectives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import p4reduce
import pytest
from cables import Cables
from fault_system import FaultSystem, fault_system_with, short_time
from p4reduce.switches import addresses
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT
from p4reduce_lab.processes.children import tail
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from worker_system import PORTS, TARGETS, System, running_system

# For tests that kill switch and controller, by way of `broken`.
fault_system = fault_system_with(short_time, "session")


@pytest.fixture(scope="session", params=TARGETS)
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    """Each test that uses it runs once on each target."""
    launcher = {"embedded": EmbeddedSwitch, "bmv2": Bmv2Switch}[request.param]
    with running_system(lambda directory: launcher(directory, PORTS)) as running:
        yield running


@pytest.fixture
def broken(fault_system: FaultSystem) -> Iterator[FaultSystem]:
    """A system to be broken, whole at first. A failed test shows what the system has written."""
    fault_system.repair()
    yield fault_system
    for log in fault_system.logs:
        print(f"-- the end of {log.name}\n{tail(log, 60)}")


@pytest.fixture
def cables(monkeypatch: pytest.MonkeyPatch) -> Cables:
    """Lets ranks that join from now on have cables."""
    made = Cables()
    monkeypatch.setattr(addresses, "open_port", made.open)
    return made


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers; the seed is in a failed test's output."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def faults(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Per cent of the frames that are lost, doubled and put out of order, each; 5 by default."""
    percent: int = getattr(request, "param", 5)
    if percent:
        seed = random.randrange(1 << 32)
        rate = percent / 100
        plan = f"drop={rate},duplicate={rate},reorder={rate},seed={seed}"
        print(f"{FAULTS_ENVIRONMENT}={plan}")
        monkeypatch.setenv(FAULTS_ENVIRONMENT, plan)
    return percent


@pytest.fixture
def alone(system: System) -> Iterator[p4reduce.Communicator]:
    """A communicator of one rank."""
    with system.init(0, 1, system.new_job()) as comm:
        yield comm
