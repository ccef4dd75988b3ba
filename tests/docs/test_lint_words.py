# SPDX-License-Identifier: Apache-2.0
"""`tools/lint_words.py` sees each way to define a name."""

from __future__ import annotations

import ast

import pytest
from tool_scripts import tool_script


@pytest.mark.parametrize(
    "line",
    [
        "def bell(): pass",
        "class Bell: pass",
        "def f(bell): pass",
        "bell = 1",
        "self.bell = 1",
        "for bell in (): pass",
        "import thing as bell",
        "from thing import other as bell",
        "try: pass\nexcept OSError as bell: pass",
        "match 1:\n    case bell: pass",
        "match 1:\n    case [*bell]: pass",
        "match 1:\n    case {**bell}: pass",
    ],
)
def test_a_retired_word_is_found(line: str) -> None:
    lint = tool_script("lint_words")
    findings = lint.in_python("worker/module.py", ast.parse(line))
    assert [text.partition(": ")[2].lower() for _, text in findings] == [
        "'bell' is retired, write doorbell"
    ]


def test_a_method_that_handles_an_event_is_called_so() -> None:
    methods = [
        "def lost(self) -> None: pass",
        "def on_lost(self) -> None: pass",
        "def moved(self) -> int: pass",
        "@property\n    def hold(self) -> None: pass",
    ]
    tree = ast.parse("class Mine:\n    " + "\n    ".join(methods))
    in_python = tool_script("lint_words").in_python
    assert list(in_python("worker/module.py", tree)) == [
        (2, "lost handles an event: write on_lost")
    ]
    assert not list(in_python("tests/test_module.py", tree))


@pytest.mark.parametrize("line", ["bell()", "import bell", "from thing import bell", "x = bell"])
def test_names_of_others_are_left_alone(line: str) -> None:
    assert not list(tool_script("lint_words").in_python("worker/module.py", ast.parse(line)))
