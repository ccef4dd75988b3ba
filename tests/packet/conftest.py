# SPDX-License-Identifier: Apache-2.0
"""Fixtures of packet tests; those of switches and jobs stand beside what they make."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from packet_jobs import jobs
from packet_testbed import bed, known, shared_bed

__all__ = ["bed", "jobs", "known", "shared_bed"]


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers; the seed is in a failed test's output, and SEED=… repeats it."""
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)
