# SPDX-License-Identifier: Apache-2.0
"""A machine's timers, told of round trips that nobody made."""

from __future__ import annotations

import ctypes
from typing import Any

from p4reduce.protocol.slots import SlotMachine
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import engine


class Timers:
    """Those of a machine of which nothing is under way."""

    def __init__(self, machine: SlotMachine, **settings: float) -> None:
        self._state = machine.state
        self.timeout: Any = machine.state.structure.timeout
        for name, seconds in settings.items():
            setattr(self.timeout, name, seconds)
        self._completed = CHeader("worker/worker.h").functions(engine()).p4r_timers_completed

    def measured(self, round_trip: float, now: float) -> None:
        """A round of slot 0 is over that has taken so long."""
        self._state.sent_at[0] = now - round_trip
        self._completed(self._state.address, 1, now, ctypes.byref(ctypes.c_int64()))

    @property
    def seconds(self) -> float:
        """The timeout."""
        return float(self.timeout.seconds)
