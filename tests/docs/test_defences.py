# SPDX-License-Identifier: Apache-2.0
"""Each row of defences.tsv quotes lines that its files have, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from p4reduce_common.rows import parse_rows
from test_architecture import DEFENCES, FILES, METHOD, ROOT, definitions

ROWS = parse_rows(DEFENCES.read_text(), DEFENCES.name)
PLACE = re.compile(r"`(?P<file>[\w/.-]+\.\w+)`(?:, `(?P<function>\w+)`)?: (?P<quotes>.*)")
QUOTES = re.compile(r"`[^`]+`(?:, `[^`]+`)*")
TESTS = re.compile(r"(?:`(?P<file>test_\w+\.py)(?:::(?P<name>test_\w+))?`|`(?P<alone>test_\w+)`)")
SOURCES = [
    file
    for file in FILES
    if file.endswith((".py", ".p4", ".c", ".h")) and not file.startswith(("tests/", "bench/"))
]


def the_file(end: str, among: list[str]) -> str:
    """The only file whose path ends so."""
    found = [file for file in among if f"/{file}".endswith(f"/{end}")]
    assert len(found) == 1, f"{end} is {found or 'nowhere'}; write as much of the path as it takes"
    return found[0]


@cache
def text_of(file: str, function: str | None = None) -> str:
    """A file's text, or that of one of its functions, with each gap as one space."""
    text = (ROOT / file).read_text()
    if function is not None:
        if file.endswith(".py"):
            bodies = [
                ast.get_source_segment(text, node) or ""
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == function
            ]
        else:
            bodies = re.findall(rf"^\w.*\b{function}\([^;]*?\n?\{{.*?^\}}", text, re.M | re.S)
        assert bodies, f"{file} has no function {function}"
        text = "\n".join(bodies)
    return " ".join(text.split())


def has(text: str, quote: str) -> bool:
    """Whether the parts of a quote, between its dots, follow each other within a statement."""
    parts = [re.escape(" ".join(part.split())) for part in quote.split("…")]
    return re.search("[^;]{0,200}?".join(parts), text) is not None


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "`" in row["line"]], ids=lambda row: row["defence"]
)
def test_quoted_lines_are_in_the_files(row: dict[str, str]) -> None:
    for part in row["line"].split("; `"):
        match = PLACE.fullmatch(part if part.startswith("`") else f"`{part}")
        assert match, f"{part!r} is not `file`[, `function`]: `line`"
        assert QUOTES.fullmatch(match["quotes"]), f"{match['quotes']!r} is not a list of `line`"
        text = text_of(the_file(match["file"], SOURCES), match["function"])
        for quote in re.findall(r"`([^`]+)`", match["quotes"]):
            assert has(text, quote), f"{match['file']} has no {quote!r}"


def test_rows_about_attacks_all_quote_a_line() -> None:
    of_attacks = [row for row in ROWS if row["section"].startswith("the data path")]
    assert of_attacks
    assert [row["defence"] for row in of_attacks if "`" not in row["line"]] == []


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "`" in row["defence"] and row["section"] != "engines"],
    ids=lambda row: row["defence"],
)
def test_code_in_the_defences_is_there(row: dict[str, str]) -> None:
    """`name` in `file.py`, or a function, class or method by its name."""
    cited = [name.removesuffix("()") for name in re.findall(r"`([^`]+)`", row["defence"])]
    files = [the_file(name, SOURCES) for name in cited if name.endswith(".py")]
    for name in cited:
        if name.endswith(".py"):
            continue
        if files:
            assert any(name in text_of(file) for file in files), name
            continue
        owner, _, last = name.rpartition(".")
        places = SOURCES
        if owner and not METHOD.fullmatch(name):
            places, name = [file for file in SOURCES if file.endswith(f"/{owner}.py")], last
        assert any(name in definitions(file) for file in places if file.endswith(".py")), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["defence"])
def test_named_tests_are_there(row: dict[str, str]) -> None:
    tests = [file for file in FILES if re.search(r"/test_\w+\.py$", file)]
    cited = re.findall(r"`[^`]*`", row["test"])
    assert cited
    for part in cited:
        match = TESTS.fullmatch(part)
        assert match, f"{part} is not `test_file.py::test_name`, `test_file.py` or `test_name`"
        places = [the_file(match["file"], tests)] if match["file"] else tests
        name = match["name"] or match["alone"]
        assert name is None or any(name in definitions(file) for file in places), part
