# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom, and hold what a run has put out.

That of PyTorch is run by tests/pytorch/test_torch_notebook.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebooks import NOTEBOOKS, run_notebook


@pytest.mark.long
@pytest.mark.parametrize("name", ["first-allreduce.ipynb", "compression.ipynb"])
def test_a_notebook_runs_from_top_to_bottom(name: str) -> None:
    pytest.importorskip("nbmake")
    run_notebook(name)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_holds_its_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    outputs = [one for cell in cells for one in cell.get("outputs", [])]
    assert outputs, "make notebooks"
    assert not any(one["output_type"] == "error" for one in outputs)
