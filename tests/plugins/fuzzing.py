# SPDX-License-Identifier: Apache-2.0
"""Random input for tests: a little in every run, and a lot by `make fuzz`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np


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
