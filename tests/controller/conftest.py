# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_harness import DEADLINE, RunningController, SwitchProcess
from p4reduce_controller.fabric.p4client import NotPrimaryError


def make_switch(directory: Path) -> SwitchProcess:
    if os.environ.get("P4REDUCE_TEST_SWITCH") == "bmv2":
        from bmv2_switch import Bmv2Switch

        return Bmv2Switch(directory)  # type: ignore[return-value]  # the same to the tests
    return SwitchProcess(directory)


@pytest.fixture(scope="session")
def shared_switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    switch = make_switch(tmp_path_factory.mktemp("switch"))
    yield switch
    switch.close()


@pytest.fixture
def switch(shared_switch: SwitchProcess) -> SwitchProcess:
    """A switch that is there for all tests: each controller begins with wiping it."""
    assert shared_switch.process.poll() is None, "an earlier test brought the switch down"
    shared_switch.drain()
    return shared_switch


@pytest.fixture
def mortal_switch(tmp_path: Path) -> Iterator[SwitchProcess]:
    """A switch of this test's own."""
    (tmp_path / "switch").mkdir()
    switch = make_switch(tmp_path / "switch")
    yield switch
    switch.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningController]]:
    """Starts controllers, and stops them after the test."""
    started: list[RunningController] = []

    def begin(
        switch: SwitchProcess, changes: dict[str, Any], deadline: float
    ) -> RunningController | None:
        try:
            return RunningController(switch.address, tmp_path, **changes)
        except NotPrimaryError:
            # The switch may not have heard yet that the controller of the test before has gone.
            if started or time.monotonic() > deadline:
                raise
            return None

    def start(switch: SwitchProcess, **changes: Any) -> RunningController:
        deadline = time.monotonic() + DEADLINE
        while (controller := begin(switch, changes, deadline)) is None:
            time.sleep(0.05)
        started.append(controller)
        return controller

    yield start
    for controller in started:
        controller.stop()


@pytest.fixture
def controller(start: Callable[..., RunningController], switch: SwitchProcess) -> RunningController:
    return start(switch)
