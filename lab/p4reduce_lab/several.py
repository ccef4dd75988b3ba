# SPDX-License-Identifier: Apache-2.0
"""One switch, several side by side, or a tree of them: whichever a command asks for."""

from __future__ import annotations

from pathlib import Path

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.system import System
from p4reduce_lab.tree import TreeShape, TreeSystem

Switches = int | TreeShape
"""So many side by side, or a tree."""


def switches_text(switches: Switches) -> str:
    """Return a text for people about the switches; empty for one switch."""
    if isinstance(switches, TreeShape):
        return f", {switches.text}"
    return f", {switches} of them side by side" if switches > 1 else ""


def system_of(
    choice: LabChoice, directory: Path, logs: Path, ports: int, switches: Switches
) -> System:
    """Return a system with these switches; a tree has a port for each of its ranks."""
    if isinstance(switches, TreeShape):
        return TreeSystem(choice, directory, logs, switches)
    return System(choice, directory, logs, ports, switches=switches)
