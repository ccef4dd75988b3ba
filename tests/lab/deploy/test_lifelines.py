# SPDX-License-Identifier: Apache-2.0
"""How long a job's network lasts after the last rank of its host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from p4reduce_lab.deploy import lifelines
from p4reduce_lab.deploy.certificates import make_certificates


class Clock:
    """The time that `lifelines` sees."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lifelines, "time", made)
    return made


@pytest.fixture
def controller() -> Iterator[socket.socket]:
    """A socket at a free port, which does not listen."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


def address(controller: socket.socket) -> str:
    return f"127.0.0.1:{controller.getsockname()[1]}"


def test_a_controller_that_nobody_reaches_has_no_ranks(
    tmp_path: Path, clock: Clock, controller: socket.socket
) -> None:
    """As when a host has lost its address: the network that runs there has to end."""
    made = make_certificates(tmp_path, ["127.0.0.1"])
    needed = lifelines.ranks_elsewhere(address(controller), made.controller)
    assert needed()
    clock.now += 59
    assert needed()
    clock.now += 2
    assert not needed()


def test_a_controller_that_is_started_again_has_time_to(
    clock: Clock, controller: socket.socket
) -> None:
    """It refuses connections until it has taken up its switches."""
    there = lifelines.controller_there(address(controller))
    assert there()
    clock.now += 4
    assert there()
    controller.listen()
    clock.now += 4
    assert there()
    clock.now += 4
    assert there()


def test_a_controller_that_refuses_has_ended(clock: Clock, controller: socket.socket) -> None:
    there = lifelines.controller_there(address(controller))
    assert there()
    clock.now += 6
    assert not there()
