# SPDX-License-Identifier: Apache-2.0
"""A latch, whatever was interrupted before."""

from __future__ import annotations

import threading
import time

from interrupting import interrupted, places
from p4reduce.latch import Latch


def set_latch() -> Latch:
    latch = Latch()
    latch.set()
    return latch


def test_after_an_interrupted_clear_a_waiter_waits_as_long_as_it_says() -> None:
    for place in places(set_latch().clear):
        latch = set_latch()
        interrupted(latch.clear, place)
        began = time.monotonic()
        assert latch.wait(0.1) or time.monotonic() - began >= 0.1, place
        threading.Timer(0.01, latch.set).start()
        assert latch.wait(60)
