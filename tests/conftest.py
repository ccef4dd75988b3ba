# SPDX-License-Identifier: Apache-2.0
"""Random input for as long as there is time: a little in every run, a lot by `make fuzz`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

_fuzz_tests = pytest.StashKey[int]()


class Fuzz:
    """What a fuzz test draws from. The seed is in a failed test's output; SEED=… repeats it.

    Attributes:
        random: Python's kind of generator.
        numpy: numpy's.
    """

    def __init__(self, seed: int, seconds: float | None) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self._seconds = seconds

    def rounds(self, count: int) -> Iterator[int]:
        """Count up to `count`; where the test has a time to fill, to the end of that."""
        began, done = time.monotonic(), 0
        while done < count if self._seconds is None else time.monotonic() - began < self._seconds:
            yield done
            done += 1
        print(f"{done} rounds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[_fuzz_tests] = sum(item.get_closest_marker("fuzz") is not None for item in items)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Each test's share of $FUZZ_SECONDS; without, as many rounds as the test says."""
    assert request.node.get_closest_marker("fuzz"), "mark it, or make fuzz leaves it out"
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    seconds = os.environ.get("FUZZ_SECONDS")
    share = float(seconds) / max(request.config.stash[_fuzz_tests], 1) if seconds else None
    return Fuzz(seed, share)
