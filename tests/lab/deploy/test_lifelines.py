# SPDX-License-Identifier: Apache-2.0
"""How long a job's network lasts after the last rank of its host."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from p4reduce_lab.deploy import lifelines
from p4reduce_lab.deploy.certificates import make_certificates


def test_a_controller_that_nobody_reaches_has_no_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a host has lost its address: the network that runs there has to end."""
    now = 1000.0
    monkeypatch.setattr(lifelines, "time", SimpleNamespace(monotonic=lambda: now))
    made = make_certificates(tmp_path, ["127.0.0.1"])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        needed = lifelines.ranks_elsewhere(address, made.controller)
        assert needed()
        now += 59
        assert needed()
        now += 2
        assert not needed()


def test_a_controller_that_is_started_again_has_time_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses connections until it has taken up its switches."""
    now = 1000.0
    monkeypatch.setattr(lifelines, "time", SimpleNamespace(monotonic=lambda: now))
    with socket.socket() as controller:
        controller.bind(("127.0.0.1", 0))
        there = lifelines.controller_there(f"127.0.0.1:{controller.getsockname()[1]}")
        assert there()
        now += 4
        assert there()
        controller.listen()
        now += 4
        assert there()
        now += 4
        assert there()


def test_a_controller_that_refuses_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(lifelines, "time", SimpleNamespace(monotonic=lambda: now))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = lifelines.controller_there(f"127.0.0.1:{nobody.getsockname()[1]}")
        assert there()
        now += 6
        assert not there()
