# SPDX-License-Identifier: Apache-2.0
"""One switch and one controller for all tests of the torch package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_system import TorchSystem, torch_system


@pytest.fixture(scope="module")
def system() -> Iterator[TorchSystem]:
    """Shared by a file's tests: jobs have names of their own."""
    with torch_system() as running:
        yield running
