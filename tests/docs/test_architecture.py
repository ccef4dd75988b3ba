# SPDX-License-Identifier: Apache-2.0
"""The paths, modules, functions and tests that the documents cite are there."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
DEFENCES = ROOT / "tests" / "defences.tsv"
FOLDERS = (
    "bench",
    "common",
    "controller",
    "docs",
    "examples",
    "exercises",
    "experiments",
    "lab",
    "model",
    "native",
    "p4src",
    "switch",
    "tests",
    "tools",
    "wireshark",
    "worker",
)
OF_READERS = {"mine.py", "train.py"}  # what the reader of a command makes
SUFFIXES = ("py", "p4", "md", "proto", "toml", "json", "svg", "lua")
PATH = re.compile(rf"(?:[\w.-]+/)*[\w.-]+\.(?:{'|'.join(SUFFIXES)})")
FOLDER = re.compile(r"(?:[\w.-]+/)+")
DOTTED = re.compile(r"p4reduce(?:_switch|_controller|_lab|_model)?(?:\.\w+)+")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
METHOD = re.compile(r"(?P<owner>_?[A-Z]\w+)\.(?P<name>\w+)")


def tracked() -> Iterator[str]:
    """Files of the checkout, by their paths from its root."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if "__pycache__" not in path.parts and path.is_file():
                yield path.relative_to(ROOT).as_posix()
    yield from (path.name for path in ROOT.iterdir() if path.is_file())


FILES = sorted(tracked())
PLACES = {"/" + "/".join(file.split("/")[:depth]) for file in FILES for depth in range(1, 9)}


def quoted(page: Path) -> list[str]:
    """What stands between backticks, outside of blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def is_there(cited: str) -> bool:
    """A file or a folder: by its whole path, or by the end of it."""
    end = "/" + cited.rstrip("/")
    return any(place.endswith(end) for place in PLACES)


@cache
def definitions(file: str) -> set[str]:
    """Names that a file defines: functions, classes, `Class.method`; of P4 controls and actions."""
    text = (ROOT / file).read_text()
    if file.endswith(".p4"):
        return set(re.findall(r"\b(?:control|action|parser|table) (\w+)", text))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, FUNCTIONS))
            names.update(f"{node.name}.{one.name}" for one in inner)
    return names


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of docs/architecture.md, without its head."""
    section = ARCHITECTURE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_path_is_there(page: Path) -> None:
    cited = {
        text
        for text in quoted(page)
        if re.fullmatch(r"[\w./-]+\.py", text) and not text.startswith("/")
    }
    assert [text for text in sorted(cited - OF_READERS) if not is_there(text)] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text())
    local = {link for link in links if "://" not in link and not link.startswith("mailto:")}
    assert [link for link in sorted(local) if not (page.parent / link).exists()] == []


def test_every_path_of_the_architecture_is_there() -> None:
    cited = [
        text for text in quoted(ARCHITECTURE) if PATH.fullmatch(text) or FOLDER.fullmatch(text)
    ]
    assert len(cited) > 80
    made = ("build/run/",)
    assert [text for text in cited if text not in made and not is_there(text)] == []


def test_every_folder_is_in_the_architecture() -> None:
    """All that are one level below the packages, and below bench/."""
    packages = {row[0].strip("`") for row in rows("The folders") if row[0] != "`tests/`"}
    assert len(packages) > 4
    named = set(quoted(ARCHITECTURE))
    for package in packages:
        inside = {file.removeprefix(package) for file in FILES if file.startswith(package)}
        folders = {file.split("/")[0] for file in inside if file.count("/") == 1}
        for folder in sorted(folders - {"compiled"}):
            assert named & {f"{folder}/", f"{package}{folder}/"}, f"{package}{folder}/"


def test_every_page_that_the_sources_cite_is_there() -> None:
    for file in FILES:
        if file.endswith((".py", ".p4", ".c", ".h", ".proto", ".toml")):
            text = (ROOT / file).read_text()
            for page in re.findall(r"(?<!behavioral-model's )\bdocs/([\w-]+\.md)", text):
                assert (ROOT / "docs" / page).exists(), f"{file}: {page}"


def test_every_dotted_name_of_the_architecture_is_there() -> None:
    cited = [text for text in quoted(ARCHITECTURE) if DOTTED.fullmatch(text)]
    assert cited
    for name in cited:
        parts = name.split(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module = importlib.import_module(".".join(parts[:-1]))
            assert hasattr(module, parts[-1]), name


def test_every_method_of_the_architecture_is_there() -> None:
    sources = [file for file in FILES if file.endswith(".py") and "/p4reduce" in file]
    known = set().union(*map(definitions, sources))
    cited = [text for text in quoted(ARCHITECTURE) if METHOD.fullmatch(text)]
    assert len(cited) > 3
    assert [text for text in cited if text not in known] == []


def test_each_step_of_the_walk_is_where_it_is_said_to_be() -> None:
    steps = rows("The walk of one number")
    assert len(steps) > 15
    for _, _, file, function in steps:
        file, function = file.strip("`"), function.strip("`")
        if file.endswith(".c"):
            defined = re.compile(rf"^\w.*\b{function}\(", re.MULTILINE)
            assert defined.search((ROOT / file).read_text()), (file, function)
        else:
            assert function in definitions(file), (file, function)


def test_what_to_change_has_a_place() -> None:
    for what, where in rows("Where to change what"):
        assert FOLDER.search(where) or PATH.search(where), what
