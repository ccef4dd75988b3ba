# SPDX-License-Identifier: Apache-2.0
"""The notebook that trains a model of PyTorch's on the switch runs from top to bottom."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("nbmake")

from notebooks import run_notebook


def test_the_notebook_of_ddp_runs_from_top_to_bottom() -> None:
    run_notebook("ddp.ipynb")
