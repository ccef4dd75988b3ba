# SPDX-License-Identifier: Apache-2.0
"""The container image: what it is built from, who runs in it, and that it trains."""

from __future__ import annotations

import re

import pytest
from containers import Podman, needs_podman
from needed import needs

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(3600),
    needs_podman,
    needs(programs=("debootstrap",), packages=("hatchling", "ziglang")),
]
IMAGE = "localhost/p4reduce:latest"
LOCKED = ("--rm", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges")


def test_it_trains_without_rights_and_without_a_network(containers: Podman) -> None:
    said = containers("run", *LOCKED, "--read-only", IMAGE)
    together = re.findall(r"accuracy of 4 ranks: (\S+)", said)
    alone = re.search(r"accuracy of one process: (\S+)", said)
    assert alone is not None, said
    assert together == [alone[1]] * 4
    assert float(alone[1]) > 0.9


def test_nobody_in_it_is_root(containers: Podman) -> None:
    said = containers("run", *LOCKED, IMAGE, "python3", "-c", "import os; print(os.getresuid())")
    assert said.strip() == "(10001, 10001, 10001)"


@pytest.mark.parametrize("command", ["p4reduce-switch", "p4reduce-controller", "p4reduce-lab"])
def test_all_parts_are_in_it(command: str, containers: Podman) -> None:
    assert "version" in containers("run", *LOCKED, IMAGE, command, "--version")
