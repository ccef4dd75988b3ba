# SPDX-License-Identifier: Apache-2.0
"""Each folder's docstring names the folders of its package that it imports, and no others.

Modules beside the folders are not counted: errors, statistics and the like may be used anywhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "worker/p4reduce",
    "controller/p4reduce_controller",
    "switch/p4reduce_switch",
    "lab/p4reduce_lab",
)


def is_folder(path: Path) -> bool:
    return (path / "__init__.py").is_file()


FOLDERS = sorted(
    file.parent.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for file in (ROOT / package).rglob("*/__init__.py")
)


def names(file: Path) -> Iterator[str]:
    """Dotted names that a module imports, those of what it takes from modules among them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(folder: str) -> set[str]:
    """The folders beside this one, or beside one it lies in, that its modules import.

    A subfolder of its own does not count: its modules are looked at by themselves.
    """
    here = Path(folder).parts[1:]
    top = ROOT / Path(folder).parts[0]
    found = set()
    for file in (ROOT / folder).glob("*.py"):
        for name in names(file):
            there = name.split(".")
            if there[0] != here[0]:
                continue
            shared = 0
            while shared < min(len(here), len(there)) and here[shared] == there[shared]:
                shared += 1
            inside = shared == len(here)
            if not inside and is_folder(top.joinpath(*there[: shared + 1])):
                found.add(there[shared])
    return found


def said(folder: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    assert text, f"{folder}/__init__.py has no docstring"
    return " ".join(text.split())


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_what_it_imports(folder: str) -> None:
    sentences = re.findall(r"\b[Ii]mports? [^.]*(?:\.\w[^.]*)*", said(folder))
    assert sentences, f"{folder} does not say what it imports: none of the other folders?"
    sentence = " ".join(sentences)
    everything = re.search(r"all (?:other )?folders(?: but (?P<but>.*))?|the rest of", sentence)
    if everything is None:
        words = set(re.findall(r"\w+", sentence))
        unsaid = imported(folder) - words
    else:
        unsaid = imported(folder) & set(re.findall(r"`(\w+)`", everything["but"] or ""))
    assert not unsaid, f"{folder} imports {sorted(unsaid)}, but says: {sentence}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_names_none_in_vain(folder: str) -> None:
    above = Path(folder).parents[:-2]  # up to the package
    beside = {path.name for one in above for path in (ROOT / one).iterdir() if is_folder(path)}
    lists = re.findall(r"\bImports ((?:`\w+`(?:, (?:and )?| and )?)+)", said(folder))
    vain = (set(re.findall(r"`(\w+)`", " ".join(lists))) & beside) - imported(folder)
    assert not vain, f"{folder} says that it imports {sorted(vain)}, but does not"
