# SPDX-License-Identifier: Apache-2.0
"""Which switch and which network a run uses, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p4reduce_lab import bmv2
from p4reduce_lab.embedded import EmbeddedSwitch
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.launch import SwitchLauncher


@dataclass(frozen=True)
class Choice:
    """What was picked.

    Attributes:
        switch: "embedded" or "bmv2".
        network: "local".
        why: The reason, for people.
        launcher: Makes the switch from a directory for its sockets and a number of ports.
    """

    switch: str
    network: str
    why: str
    launcher: Callable[[Path, int], SwitchLauncher]

    @property
    def text(self) -> str:
        """In one line."""
        return f"{NAMES[self.switch]}, workers on this machine ({self.why})"


NAMES = {"embedded": "embedded switch", "bmv2": "BMv2 (simple_switch_grpc)"}


def choose(switch: str, network: str) -> Choice:
    """Picks what "auto" stands for, and makes sure that the rest can run here.

    Args:
        switch: "auto", "embedded" or "bmv2".
        network: "auto" or "local"; "mininet" is refused, as there is no such network yet.

    Raises:
        UnavailableError: it cannot; the message says what is missing.
    """
    if network == "mininet":
        raise UnavailableError("NET=mininet is not available in this version: use NET=local")
    if switch == "bmv2":
        if reason := bmv2.unavailable():
            raise UnavailableError(f"SWITCH=bmv2 cannot run here: {reason}")
        return Choice("bmv2", "local", "as asked; its ports are veth pairs", bmv2.Bmv2Switch)
    why = "as asked" if switch == "embedded" else "the default: runs everywhere, without root"
    return Choice("embedded", "local", f"{why}; its ports are Unix sockets", EmbeddedSwitch)
