# SPDX-License-Identifier: Apache-2.0
"""The ring in shared memory with both ends at once, under ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import Fuzz
from link_ends import NO_LINKS
from p4reduce_native.library import CSRC
from sanitized import SanitizedProgram

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))


@pytest.mark.fuzz
def test_two_ends_without_a_race_or_a_lost_doorbell(fuzz: Fuzz, tmp_path: Path) -> None:
    """See ring_races.c."""
    # gcc says that it does not model fences; what they are for, lost doorbells, shows by a wait.
    flags = [f"-I{CSRC / 'link'}", "-Wno-tsan"]
    program = SanitizedProgram(
        tmp_path,
        "ring_races.c",
        sources=[CSRC / "link" / "ring.c"],
        flags=flags,
        sanitizers="thread",
    )
    program.run(fuzz, 10)
