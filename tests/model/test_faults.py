# SPDX-License-Identifier: Apache-2.0
"""Each fault that such protocols are known for, planted in the real code, is found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from p4reduce_common.rows import parse_rows
from p4reduce_model.faults import FAULTS as ON_ONE_SWITCH
from p4reduce_model.faults import Fault
from p4reduce_model.progress import PROGRESS
from p4reduce_model.trace import describe
from p4reduce_model.tree_faults import TREE_FAULTS

# To compile a program takes seconds: of the tree's, the others are planted by `make model`.
_OF_TREES = {
    "answers with its own sum",
    "keeps half a result",
    "same job on a restarted leaf",
    "same job on a restarted root",
}
FAULTS = [*ON_ONE_SWITCH, *(fault for fault in TREE_FAULTS if fault.name in _OF_TREES)]
assert len(FAULTS) == len(ON_ONE_SWITCH) + len(_OF_TREES)

P4C = [
    pytest.mark.p4c,
    pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH"),
]


@pytest.fixture(scope="module")
def programs() -> Iterator[Mapping[str, Future[bytes | None]]]:
    """The programs with faults, compiled side by side and while others are explored."""
    if shutil.which("p4c-bm2-ss") is None:
        yield {}
        return
    with ThreadPoolExecutor(2) as pool:
        yield {fault.name: pool.submit(fault.program) for fault in FAULTS if fault.edits}


def faults() -> list[object]:
    """Those of the worker first: they need no compiler."""
    return [
        pytest.param(fault, id=fault.name, marks=P4C if fault.edits else [])
        for fault in sorted(FAULTS, key=lambda fault: bool(fault.edits))
    ]


@pytest.mark.long
@pytest.mark.parametrize("fault", faults())
def test_a_planted_fault_is_found(
    fault: Fault, programs: Mapping[str, Future[bytes | None]]
) -> None:
    program = programs[fault.name].result(timeout=280) if fault.edits else None
    system, outcome = fault.hunt(program)
    assert outcome.violation is not None, f"{outcome.states} states, and nothing wrong in them"
    assert outcome.violation.invariant == fault.breaks
    trace = describe(system, outcome)
    print(trace)
    assert str(outcome.violation) in trace
    assert outcome.trace or outcome.violation.invariant == PROGRESS


@pytest.mark.parametrize(("section", "least"), [("the protocol", 9), ("trees", 10)])
def test_the_tests_that_the_docs_name_are_there(section: str, least: int) -> None:
    tests_folder = Path(__file__).parents[1]
    rows = parse_rows((tests_folder / "defences.tsv").read_text(), "defences.tsv")
    cells = [row["test"] for row in rows if row["section"] == section]
    assert len(cells) >= least
    sources = "".join(path.read_text() for path in tests_folder.rglob("test_*.py"))
    planted = {fault.name for fault in (*ON_ONE_SWITCH, *TREE_FAULTS)}
    for tests in cells:
        names = re.findall(r"`(\w+)`", tests)
        assert names, tests
        for name in names:
            assert f"def {name}(" in sources, name
        for name in re.findall(r"\*([^*]+)\*", tests):
            assert name in planted, name
