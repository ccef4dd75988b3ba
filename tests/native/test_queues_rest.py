# SPDX-License-Identifier: Apache-2.0
"""Egress queues go on after a port had no memory, which no event reports the end of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from link_ends import NO_LINKS
from sanitized import faults


@pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))
def test_queues_go_on_when_a_device_has_memory_again(tmp_path: Path) -> None:
    """See queues_rest.py."""
    library = faults(tmp_path)
    script = Path(__file__).with_name("queues_rest.py")
    done = subprocess.run(
        [sys.executable, str(script), library, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LD_PRELOAD": library, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
