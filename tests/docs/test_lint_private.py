# SPDX-License-Identifier: Apache-2.0
"""`tools/lint_private.py`: what it finds, and what it leaves alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(TOOLS)
    import lint_private

    yield lint_private
    del sys.modules["lint_private"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("thing._inside", "uses thing._inside"),
        ("thing.part._inside.more", "uses thing.part._inside"),
        ("from p4reduce.somewhere import _inside", "imports _inside of p4reduce.somewhere"),
        ("monkeypatch.setattr(thing, '_inside', 1)", "setattr of '_inside'"),
        ("monkeypatch.setattr('p4reduce.x._inside', 1)", "setattr of 'p4reduce.x._inside'"),
        ("patch.dict(vars(thing), {'_inside': 1})", "names _inside"),
        ("class Mine(Base):\n    def _inside(self): pass", "Mine overrides _inside"),
        (
            "class Mine(Base):\n    def f(self): self._inside()",
            "Mine uses self._inside of its base",
        ),
        ("class Mine:\n    def f(self): self._inside()", ""),
        ("class Mine(Other):\n    def _inside(self): pass", ""),
        ("os._exit(1); pair._replace(a=1); torch._C", ""),
    ],
)
def test_each_way_to_reach_for_a_private_name(lint: object, line: str, found: str) -> None:
    module = ast.parse(f"from p4reduce.base import Base\n{line}\n")
    classes = {"Base": {"_inside"}, "Other": {"_inside"}}
    findings = lint.findings(module, {"_inside"}, classes)  # type: ignore[attr-defined]
    assert [what for _, what in findings] == ([found] if found else [])
