# SPDX-License-Identifier: Apache-2.0
"""Versions of torch that the tests did not run with are said to be untested."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

from p4reduce.torch.versions import NEWEST, OLDEST, warn_if_untested

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0+cpu", "3.0.0a0+git12ab", "1.13.1", "fork"])
def test_an_untested_version_is_named(version: str) -> None:
    with pytest.warns(UserWarning, match="2.10 to 2.15, and this is torch") as warned:
        warn_if_untested(version)
    assert version in str(warned[0].message)


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.0+cu132", "2.15.7"])
def test_a_tested_version_is_not(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)


def test_the_extra_has_the_same_bounds() -> None:
    oldest, newest = ".".join(map(str, OLDEST)), f"{NEWEST[0]}.{NEWEST[1] + 1}"
    [bounds] = re.findall(r'^torch = \[.*"(torch>[^"]*)"', PYPROJECT.read_text(), re.MULTILINE)
    assert bounds == f"torch>={oldest},<{newest}"
