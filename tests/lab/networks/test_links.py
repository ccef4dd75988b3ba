# SPDX-License-Identifier: Apache-2.0
"""Settings of a comparison's networks that the system does not take."""

from __future__ import annotations

from pathlib import Path

import pytest
from p4reduce_lab.errors import LabError
from p4reduce_lab.networks.links import set_congestion

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
FAILS = ["false"]  # a prefix by which no command succeeds, as where /proc/sys is read-only


@pytest.mark.skipif(not AVAILABLE.exists(), reason=f"needs {AVAILABLE}")
def test_a_congestion_control_that_the_kernel_has_is_not_said_to_be_missing() -> None:
    has = AVAILABLE.read_text().split()
    with pytest.raises(LabError, match=r"`false sh -c .*` failed"):
        set_congestion([FAILS], has[-1])
    with pytest.raises(LabError, match=f"no TCP congestion control 'x'; it has {' '.join(has)}$"):
        set_congestion([FAILS], "x")
