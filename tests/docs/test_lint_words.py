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


@pytest.mark.parametrize("line", ["bell()", "import bell", "from thing import bell", "x = bell"])
def test_names_of_others_are_left_alone(line: str) -> None:
    assert not list(tool_script("lint_words").in_python("worker/module.py", ast.parse(line)))
