# SPDX-License-Identifier: Apache-2.0
"""UDP peers to which the host has no way for a while: nobody spins, and frames come afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from link_ends import NO_LINKS
from sanitized import run_with_faults


@pytest.mark.root
@pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root, unshare")
def test_ends_without_a_way_between_them_try_again_at_ease(tmp_path: Path) -> None:
    """See unreachable.py."""
    run_with_faults(tmp_path, "unreachable.py", under=("unshare", "--net"), timeout=250)
