# SPDX-License-Identifier: Apache-2.0
"""One build of the release for all tests of it."""

from __future__ import annotations

import pytest
from distributions import Distributions, build


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """sdists and wheels, as tools/build_dist.py makes them."""
    return build(tmp_path_factory.mktemp("dist"))
