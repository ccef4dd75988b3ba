# SPDX-License-Identifier: Apache-2.0
"""Jobs on several hosts, each process of which is killed at random moments. As many as you like:

P4REDUCE_TEST_KILLS=100 python -m pytest -s --timeout=0 tests/pytorch/test_torch_kills.py

P4REDUCE_TEST_SEED=N begins with the trial of that seed. With P4REDUCE_TEST_KILL=rank all victims
are ranks.
"""

from __future__ import annotations

import os
import random

import pytest
from home import REASON
from kills import KINDS, Trial

TRIALS = int(os.environ.get("P4REDUCE_TEST_KILLS", "2"))
SEED = int(os.environ.get("P4REDUCE_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
KIND = os.environ.get("P4REDUCE_TEST_KILL", "")

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.timeout(7200)
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_what_is_killed_is_named_or_the_sums_are_right() -> None:
    wrong = []
    for number in range(TRIALS):
        # Each kind in turn, so that a few trials have all of them.
        trial = Trial.drawn(SEED + number, KIND or KINDS[(SEED + number) % len(KINDS)])
        print(trial, end=": ", flush=True)
        found = trial.run()
        print("WRONG" if found else "right", *found, sep="\n    ", flush=True)
        wrong += [f"{trial}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)
