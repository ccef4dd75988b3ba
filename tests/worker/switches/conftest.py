# SPDX-License-Identifier: Apache-2.0
"""Switches for all tests of this folder. What a test has broken is repaired for the next one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_system import PATIENT_LEASE
from p4reduce.switches import shares
from several_switches import SeveralSwitches


@pytest.fixture(scope="session")
def shared_switches() -> Iterator[SeveralSwitches]:
    # pytest's own directories have paths too long for Unix sockets.
    with tempfile.TemporaryDirectory(prefix="p4r-") as name:
        running = SeveralSwitches("embedded", Path(name), 2, PATIENT_LEASE)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def switches(shared_switches: SeveralSwitches, monkeypatch: pytest.MonkeyPatch) -> SeveralSwitches:
    """Two or more, all of them there. Tensors of a few KB use all of them."""
    monkeypatch.setattr(shares, "MOST_WHOLE", 15)
    monkeypatch.setattr(shares, "RUN", 0)
    shared_switches.repair()
    return shared_switches
