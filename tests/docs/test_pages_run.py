# SPDX-License-Identifier: Apache-2.0
"""Every code block of a page runs, or the page says why not (`page_blocks`).

Those that need PyTorch run in tests/pytorch/test_torch_pages.py.
"""

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
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.name != "performance.md"  # figures; its pieces of Python are of no whole script
    ),
]
ALL = [block for page in PAGES for block in blocks_of(page)]
RUNNING = [block for block in ALL if "no" not in block.words]


FIRST = PAGES[:2]  # `make test-long` has all pages


def _marked(block: Block) -> object:
    marks = [getattr(pytest.mark, name) for name in ("root", "bmv2") if name in block.words]
    if "long" in block.words or block.page not in FIRST:
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
    use = re.compile(r"(?<![\w.])(?<!from )p4reduce\.torch\.\w")
    using = [block for block in ALL if use.search(block.text)]
    assert using
    lacking = [block.name for block in using if "import p4reduce.torch" not in block.text]
    assert lacking == [], "import p4reduce.torch"


def test_the_figures_are_tables_in_a_clone() -> None:
    page = (ROOT / "docs" / "figures.md").read_text()
    assert "| 4 | 16 MiB |" in page
    assert not re.search(r"\(\S*tables/", page)
