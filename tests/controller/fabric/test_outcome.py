# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

from p4reduce.wire.format import MAX_SLOTS
from p4reduce_controller.fabric.layout import FLOOD_GROUP
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.jobs.job import SLOTS
from p4reduce_controller.topology.given import CPU_PORT

SOURCES = Path(__file__).parents[3] / "p4src"
CONSTANTS = SOURCES / "common" / "constants.p4"
SIZES = SOURCES / "v1model" / "sizes.p4"


def test_outcomes_are_those_of_the_program() -> None:
    found = re.search(r"enum bit<8> Outcome \{(.*?)\n\}", CONSTANTS.read_text(), re.DOTALL)
    assert found, "constants.p4 has no enum Outcome"
    members = re.findall(r"^\s*(\w+)\s*=\s*(\d+)", found[1], re.MULTILINE)
    assert {name: int(value) for name, value in members} == {o.name: o.value for o in FrameOutcome}


def test_numbers_are_those_of_the_program() -> None:
    text, sizes = CONSTANTS.read_text(), SIZES.read_text()
    assert re.search(rf"FLOOD_GROUP\s*= {FLOOD_GROUP};", text)
    assert re.search(rf"SLOTS\s*= {SLOTS};", sizes)
    assert MAX_SLOTS == SLOTS
    assert re.search(rf"#define CPU_PORT {CPU_PORT}\b", sizes)


def test_labels() -> None:
    assert FrameOutcome.ROUND_COMPLETED_HALVES.label == "round-completed-halves"
