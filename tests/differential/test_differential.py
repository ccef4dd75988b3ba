# SPDX-License-Identifier: Apache-2.0
"""Random sequences through BMv2 and the embedded switch: equal frames out of equal ports in equal
order, equal packet-ins, equal entries and equal counters.

Hypothesis makes the sequences and shrinks one that fails. What it prints then: the steps; each
frame of them, in words and in hexadecimal; in what the switches differ; and how to play it again.

    P4REDUCE_DIFFERENTIAL_EXAMPLES=5000 pytest tests/differential
"""

from __future__ import annotations

import os
import random

import pytest
from differential_steps import JobShape, Step, play, scenes, steps
from differential_targets import Pair, differences
from hypothesis import HealthCheck, Phase, given, seed, settings

EXAMPLES = int(os.environ.get("P4REDUCE_DIFFERENTIAL_EXAMPLES", "50"))
SECONDS = 120  # for any number of examples up to that, and for shrinking


class SwitchesDifferError(AssertionError):
    """In what, and after what."""


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.root
@pytest.mark.timeout(max(SECONDS, EXAMPLES) * 5)
def test_equal_to_bmv2(pair: Pair, request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("--hypothesis-seed")
    if number is None:
        number = random.randrange(1 << 32)
    print(f"again: P4REDUCE_DIFFERENTIAL_EXAMPLES={EXAMPLES} pytest --hypothesis-seed={number}")

    @seed(int(number))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        print_blob=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],  # to explain takes as long again
        suppress_health_check=list(HealthCheck),
    )
    @given(jobs=scenes, steps=steps)
    def equal(jobs: tuple[JobShape, ...], steps: list[Step]) -> None:
        before, events = play(jobs, steps)
        found = differences(pair.play(before, events))
        if found:
            sequence = [f"  {n:3} {event}" for n, event in enumerate(events, start=1)]
            raise SwitchesDifferError("\n".join(["", *found, "after", *sequence]))

    equal()
