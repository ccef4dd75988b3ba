# SPDX-License-Identifier: Apache-2.0
"""Egress queues go on after a port had no memory, which no event reports the end of."""

from __future__ import annotations

from pathlib import Path

import pytest
from link_ends import NO_LINKS
from sanitized import run_with_faults


@pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))
def test_queues_go_on_when_a_device_has_memory_again(tmp_path: Path) -> None:
    """See queues_rest.py."""
    run_with_faults(tmp_path, "queues_rest.py", str(tmp_path), timeout=120)
