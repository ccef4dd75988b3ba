# SPDX-License-Identifier: Apache-2.0
"""One switch of each kind for all packet tests; each test has jobs and slots of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
from p4reduce_controller.fabric.schema import TableRow
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import SwitchLauncher
from packet_jobs import Jobs
from packet_testbed import KNOWN, KNOWN_PORT, PORTS, Testbed, station

EMBEDDED = pytest.param("embedded", id="embedded")
BMV2 = pytest.param("bmv2", id="bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])


@pytest.fixture(scope="session", params=[EMBEDDED, BMV2])
def shared_bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A switch for all tests."""
    if request.param == "bmv2" and (reason := bmv2.unavailable()):
        pytest.skip(reason)
    with run_directory() as directory:
        kinds = {"embedded": EmbeddedSwitch, "bmv2": bmv2.Bmv2Switch}
        launcher: SwitchLauncher = kinds[request.param](directory, len(PORTS))
        with launcher as switch:
            bed = Testbed(switch)
            try:
                yield bed
            finally:
                bed.close()


@pytest.fixture
def bed(shared_bed: Testbed) -> Testbed:
    """The same, unless an earlier test brought it down."""
    shared_bed.switch.check()
    return shared_bed


@pytest.fixture
def known(bed: Testbed) -> Iterator[TableRow]:
    """The station KNOWN is at port 3."""
    row = station(KNOWN, KNOWN_PORT)
    bed.insert([row])
    yield row
    bed.remove([row])


@pytest.fixture
def jobs(bed: Testbed) -> Iterator[Jobs]:
    """Makes jobs that are gone after the test."""
    made = Jobs(bed)
    yield made
    made.close()


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers; the seed is in a failed test's output, and SEED=… repeats it."""
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)
