# SPDX-License-Identifier: Apache-2.0
"""The case tables of docs/protocol.md say what the compiled program does, in every state of a slot.

Each state is put into the registers of the embedded switch, one frame follows, and the outcome that
counts it is the one that the page's row names. The first row that matches counts.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import tofino2_on_v1model
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_model.faults import compile_with
from slot_cases import TOFINO2, V1MODEL, V1MODEL_64, Case, Form, Switch, cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
COMPILED = ROOT / "p4src" / "compiled" / "p4reduce.json"
COMPILED_64 = COMPILED.with_name("p4reduce64.json")

needs_p4c = pytest.mark.skipif(
    shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH"
)

# What the words of the page's second table mean.
FRAMES: Mapping[str, Callable[[Case], bool]] = {
    "the last contribution": lambda case: case.last,
    "a repetition": lambda case: case.repeats,
    "a repetition with TELL_ALL or FOR_ONE": lambda case: case.repeats and case.frame.asks_for_all,
    "a repetition whose turn it is": lambda case: case.repeats and case.turn,
    "another repetition": lambda case: case.repeats,
    "the parent's RESULT": lambda case: case.frame.kind == FrameKind.RESULT and not case.frame.half,
    "half of the parent's RESULT": lambda case: case.frame.half,
    "the parent's STATUS": lambda case: (
        case.frame.kind == FrameKind.STATUS and not case.frame.flags & Flag.FOR_ONE
    ),
    "the parent's STATUS with FOR_ONE": lambda case: (
        case.frame.kind == FrameKind.STATUS and bool(case.frame.flags & Flag.FOR_ONE)
    ),
    "any of these four": lambda case: case.frame.answers,
}
ROUNDS: Mapping[str, Callable[[Case], bool]] = {
    "": lambda _: True,
    "incomplete": lambda case: not case.complete,
    "complete, not final": lambda case: case.complete and not case.slot.final,
    "final": lambda case: case.complete and bool(case.slot.final),
    "incomplete, or another round or job": lambda case: not case.complete,
}


@cache
def table(first: str) -> list[list[str]]:
    """The rows of the page's table whose first columns have these heads."""
    lines = iter(PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows][1:]
    raise AssertionError(f"{PAGE.name} has no table about {first!r}")


def on_the_page(case: Case, *, below: bool) -> FrameOutcome:
    """The outcome that the page names."""
    outcome = with_room(case, below=below)
    for other, without, _ in table("with room | without room"):
        if case.no_room and not case.frame.answers and outcome == other:
            return FrameOutcome[without]
    return FrameOutcome[outcome]


def with_room(case: Case, *, below: bool) -> str:
    *from_parent, from_elsewhere = table("frame | the round is")
    if case.frame.answers and not (below and case.frame.from_parent):
        return from_elsewhere[-1]
    for frame, about, _, outcome in from_parent if below else ():
        if FRAMES[frame](case) and ROUNDS[about](case):
            return outcome
    words = {True: "yes", False: "no"}
    own = (case.job, case.round, words[case.heard], words[case.complete])
    for *cells, _, _, outcome in table("job | round"):
        if all(cell in ("–", word) for cell, word in zip(cells, own, strict=True)):
            return outcome
    raise AssertionError(f"no row of {PAGE.name} is about {case}")


def differences(program: bytes, form: Form, *, below: bool) -> str:
    """The first cases in which page and program differ."""
    switches = {ranks: Switch(program, ranks, below=below, form=form) for ranks in (1, 2)}
    found = [
        f"{case}: {outcome.name}, and the page says {expected.name}"
        for case in cases(form, below=below)
        if (outcome := switches[case.ranks].outcome(case))
        != (expected := on_the_page(case, below=below))
    ]
    return "\n".join(found[:5])


@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
@pytest.mark.parametrize(("program", "form"), [(COMPILED, V1MODEL), (COMPILED_64, V1MODEL_64)])
def test_the_program_does_what_the_page_says(program: Path, form: Form, below: bool) -> None:
    assert not differences(program.read_bytes(), form, below=below)


@pytest.mark.long
@pytest.mark.p4c
@needs_p4c
@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
def test_so_does_the_table_alone(below: bool) -> None:
    """v1model decides about most frames without the table `decide`: both say the same."""
    slots = (ROOT / "p4src" / "v1model" / "slots.p4").read_text()
    (shortcut,) = re.findall(
        r"        if \([^)]*\) \{\n            decide_at_once\(\);\n        }\n", slots
    )
    program = compile_with((("v1model/slots.p4", shortcut, ""),))
    assert not differences(program, V1MODEL, below=below)


@pytest.mark.long
@pytest.mark.p4c
@needs_p4c
@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
def test_so_do_the_steps_for_tofino2(below: bool) -> None:
    assert not differences(tofino2_on_v1model.program(), TOFINO2, below=below)


def test_each_outcome_of_the_page_is_that_of_a_case() -> None:
    named = {
        on_the_page(case, below=below)
        for below in (False, True)
        for case in cases(V1MODEL, below=below)
    }
    rows = [*table("job | round"), *table("frame | the round is")]
    assert {row[-1] for row in rows} | {row[1] for row in table("with room | without room")} == {
        outcome.name for outcome in named
    }
