# SPDX-License-Identifier: Apache-2.0
"""Ranks that are late by what they wait for, not by a clock."""

from __future__ import annotations

from p4reduce.late.sums import Sums
from worker_system import wait_for


def wait_until_behind(sums: Sums, by: int = 1) -> None:
    """Return when the others have gone on without this rank."""
    wait_for(lambda: sums.behind >= by, f"{by} sums are over without this rank")


def wait_until_there(sums: Sums, ranks: int) -> None:
    """Return when a negotiation has had that many ranks present."""
    wait_for(lambda: sums.present >= ranks, f"{ranks} ranks have called the sum")
