# SPDX-License-Identifier: Apache-2.0
"""The pages that the site is built from: no link leaves it, its reference is what the code has."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from p4reduce_lab.explain.messages import messages
from tool_scripts import tool_script

ROOT = Path(__file__).parents[2]
PRODUCT = ("common", "native", "worker", "controller", "switch", "lab", "tools")
# Of tests and of the lab among its own processes.
INTERNAL = {"P4REDUCE_COMPARE_STORE"}


@pytest.fixture
def build_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return tool_script("build_site")


def test_every_variable_is_in_the_table(build_site: ModuleType) -> None:
    found: set[str] = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if path != ROOT / "tools" / "variables.py":
                found |= set(
                    re.findall(r"[\"']\$?(P4REDUCE_[A-Z0-9_]+[A-Z0-9])\b", path.read_text())
                )
    assert found - INTERNAL == {one.name for one in build_site.VARIABLES}


def test_the_pages_of_the_site(
    build_site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_site, "PAGES", tmp_path / "pages")
    build_site.build()
    pages = tmp_path / "pages"
    navigation = re.findall(r'= "([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert len(navigation) > 25
    assert [name for name in navigation if not (pages / name).exists()] == []
    code = (pages / "source" / "examples" / "allreduce.py.md").read_text()
    assert code.startswith("# examples/allreduce.py\n\n~~~~python\n")
    commands = (pages / "reference" / "commands.md").read_text()
    assert "### p4reduce-lab exec" in commands
    assert "### p4reduce-controller doctor" in commands
    variables = (pages / "environment.md").read_text()
    assert "| `P4REDUCE_RANK` |" in variables
    assert "| `P4REDUCE_LINK` | `single` or `shared` |" in variables
    assert "| `push`, `pop` | yes | stacks |" in (pages / "v1model.md").read_text()
    assert "| the port has another worker |" in (pages / "troubleshooting.md").read_text()
    assert "| 4 | 16 MiB |" in (pages / "figures.md").read_text()
    for page in pages.rglob("*.md"):
        assert not re.search(r"^<!-- messages|tables/[\w-]+\.md\)$", page.read_text(), re.MULTILINE)
    rows = (pages / "reference" / "figures.md").read_text()
    assert "## make compare\n" in rows
    assert "python -m bench.switch.ports" in rows


def test_each_tab_opens_the_first_page_that_it_lists() -> None:
    """`navigation.indexes` makes a README the tab's own page, and takes it out of the list."""
    assert "navigation.indexes" not in (ROOT / "zensical.toml").read_text()


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "zensical.toml").read_text()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f'"{page}"' not in text} == set()


def test_every_message_is_on_a_page() -> None:
    shown = [
        section
        for name in ("troubleshooting.md", "command-errors.md")
        for section in re.findall(r"<!-- messages: (.+) -->", (ROOT / "docs" / name).read_text())
    ]
    assert len(shown) == len(set(shown))
    assert set(shown) == {one.section for one in messages()}
