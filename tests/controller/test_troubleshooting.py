# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md has every error that a user can meet."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from p4reduce_controller.doctor.switch import SYMPTOMS
from p4reduce_controller.exit_codes import Exit

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()

# Where errors come from whose text reaches people: raised from the library, printed by a command,
# or told by the controller. All others end within the program.
MODULES = (
    "p4reduce.errors",
    "p4reduce.control.client",
    "p4reduce.control.tls",
    "p4reduce.ring.handshake",
    "p4reduce_controller.allocator",
    "p4reduce_controller.controller",
    "p4reduce_controller.events",
    "p4reduce_controller.fabric",
    "p4reduce_controller.job",
    "p4reduce_controller.listen",
    "p4reduce_controller.p4client",
    "p4reduce_controller.schema",
    "p4reduce_controller.table",
    "p4reduce_switch.loader_json",
    "p4reduce_switch.p4info",
    "p4reduce_switch.ports",
    "p4reduce_switch.server_errors",
    "p4reduce_switch.tls",
    "p4reduce_lab.errors",
    "p4reduce_lab.processes",
    "p4reduce_lab.veth",
)


def errors() -> set[str]:
    return {
        name
        for module in MODULES
        for name, thing in vars(importlib.import_module(module)).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == module
    }


def test_errors_were_found() -> None:
    assert {"WorkerLostError", "ListenError", "PortError", "UnavailableError"} <= errors()


@pytest.mark.parametrize("name", sorted(errors()))
def test_each_error_is_there(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE), f"{name} is not in docs/troubleshooting.md"


@pytest.mark.parametrize("code", list(Exit), ids=lambda code: code.name)
def test_each_exit_code_is_there(code: Exit) -> None:
    section = PAGE.partition("\n## p4reduce-controller\n")[2].partition("\n## ")[0]
    assert re.search(rf"^\| {code.value} \| \S", section, re.MULTILINE)


@pytest.mark.parametrize("symptom", sorted(SYMPTOMS.keys() - {"slot-out-of-range"}))
def test_symptoms_are_there(symptom: str) -> None:
    assert f"`{symptom}`" in PAGE


def test_links_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        assert not anchor or file or anchor in anchors, target
        assert not file or (DOCS / file).exists(), target
