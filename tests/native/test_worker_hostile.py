# SPDX-License-Identifier: Apache-2.0
"""Any frames at any state of the slots: the C keeps to its arrays, and to what C defines."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import Fuzz
from p4reduce_native.library import engine_sources
from sanitized import SanitizedProgram


@pytest.mark.long
@pytest.mark.fuzz
def test_random_frames_under_sanitizers(fuzz: Fuzz, tmp_path: Path) -> None:
    flags = ["-fsanitize=float-cast-overflow"]
    SanitizedProgram(tmp_path, "worker_fuzz.c", engine_sources(), flags).run(fuzz, 100)
