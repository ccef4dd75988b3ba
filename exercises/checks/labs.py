# SPDX-License-Identifier: Apache-2.0
"""The labs, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exercises.checks import count, lazy, loss, narrow, neighbours, total, zeros
from exercises.checks.report import Check

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Lab:
    """A lab.

    Attributes:
        name: of its folder, behind the number.
        title: what the student writes.
        checks: what has to hold of a file.
        suffix: of the file.
    """

    name: str
    title: str
    checks: Callable[[Path], list[Check]]
    suffix: str = ".p4"


LABS = (
    Lab("count", "a register that counts", count.checks),
    Lab("sum", "sum the lanes of two ranks", total.checks),
    Lab("loss", "loss and the shadow copy", loss.checks),
    Lab("zeros", "blocks of zeros stay at home", zeros.checks),
    Lab("narrow", "a narrow lane format", narrow.checks),
    Lab("neighbours", "sum your neighbours (GADMM)", neighbours.checks, ".py"),
    Lab("lazy", "lazy gradients (LAG)", lazy.checks, ".py"),
)


def folder(number: int) -> Path:
    """A lab's folder; labs count from 1."""
    return ROOT / f"{number}-{LABS[number - 1].name}"
