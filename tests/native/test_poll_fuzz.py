# SPDX-License-Identifier: Apache-2.0
"""Whatever one poll of the loop brings at once, in any order: under AddressSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import Fuzz
from link_ends import NO_LINKS
from sanitized import SanitizedPython

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))


@pytest.mark.long
@pytest.mark.fuzz
def test_events_of_one_poll_in_any_order(fuzz: Fuzz, tmp_path: Path) -> None:
    """See poll_fuzz.py."""
    SanitizedPython(tmp_path, "poll_fuzz.py").run(fuzz, 10)
