# SPDX-License-Identifier: Apache-2.0
"""Every code block of tutorials and how-to pages runs, or its page says why not (`page_blocks`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from p4reduce_lab import LocalNetwork
from page_blocks import ROOT, SECONDS, Block, blocks_of, run, workplace

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "exercises" / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "bmv2",
            "collectives",
            "compression",
            "deploy",
            "embedded-switch",
            "environment",
            "faults",
            "horovod",
            "install",
            "lanes",
            "late",
            "mpi",
            "planner",
            "pytorch",
            "pytorch-recipes",
            "scale",
            "security",
            "simple-switch",
            "tutorial",
            "wireshark",
        )
    ),
    *sorted((ROOT / "docs" / "contributing").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
ALL = [block for page in PAGES for block in blocks_of(page)]
RUNNING = [block for block in ALL if "no" not in block.words]


FIRST = ("README.md", "CONTRIBUTING.md")  # `make test-long` has all pages


def _marked(block: Block) -> object:
    marks = [getattr(pytest.mark, name) for name in ("root", "bmv2") if name in block.words]
    if "long" in block.words or block.page.name not in FIRST:
        marks.append(pytest.mark.long)
    return pytest.param(block, marks=marks, id=block.name)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """One directory for all blocks of a page, as for somebody who follows it."""
    made: dict[Path, Path] = {}
    for page in PAGES:
        made[page] = tmp_path_factory.mktemp(page.stem)
        workplace(made[page])
    return made


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.p4reduce(ranks=8)
@pytest.mark.parametrize("block", [_marked(one) for one in RUNNING if "torch" not in one.words])
def test_a_block_runs(
    block: Block, directories: dict[Path, Path], p4reduce_network: LocalNetwork
) -> None:
    if missing := block.missing():
        pytest.skip(f"needs {missing}")
    run(block, directories[block.page], p4reduce_network.variables)


def test_a_block_that_does_not_run_says_why() -> None:
    assert RUNNING
    assert [block.name for block in ALL if block.words.get("no") == ""] == []


def test_a_block_imports_the_submodules_that_it_uses() -> None:
    """`import p4reduce` alone does not bring `p4reduce.torch`."""
    using = [block for block in ALL if re.search(r"(?<![\w.])p4reduce\.torch\.\w", block.text)]
    assert using
    lacking = [block.name for block in using if "import p4reduce.torch" not in block.text]
    assert lacking == [], "import p4reduce.torch"


def test_the_figures_are_tables_in_a_clone() -> None:
    page = (ROOT / "docs" / "figures.md").read_text()
    assert "| 4 | 16 MiB |" in page
    assert not re.search(r"\(\S*tables/", page)
