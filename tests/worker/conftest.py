# SPDX-License-Identifier: Apache-2.0
"""One switch and one controller for all tests of whole collectives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from worker_system import System


@pytest.fixture(scope="session")
def system() -> Iterator[System]:
    # pytest's own directories have paths too long for Unix sockets.
    with tempfile.TemporaryDirectory(prefix="p4r-") as directory:
        running = System(Path(directory))
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers; the seed is in a failed test's output."""
    seed = int(np.random.default_rng().integers(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)
