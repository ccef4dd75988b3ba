# SPDX-License-Identifier: Apache-2.0
"""Whether clocks and sleeps are accurate enough for leases and retransmission timers.

Clocks of several machines are not compared: a lease is counted by the controller's monotonic clock
alone, and a worker's timers by its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from p4reduce_controller.doctor.control_path import Answers
from p4reduce_controller.doctor.finding import Finding, failure, ok, warning
from p4reduce_controller.storage import incarnation

SECTION = "Clock"
_SLEEPS = 20
_SLEEP = 0.005  # seconds
_LATE = 0.05  # seconds that a sleep may take longer
_DRIFT = 0.005  # how far two clocks may run apart
_CAUSE = "The machine is overloaded, or a virtual one that is not always run."


@dataclass(frozen=True)
class Reading:
    """What the clocks of a machine show.

    Attributes:
        late: how many seconds too long a sleep took, at most.
        drift: how much faster the monotonic clock runs than the hardware's, as a fraction.
        slept: seconds that the machine was suspended since it was started.
        date: seconds since 1970.
    """

    late: float
    drift: float
    slept: float
    date: float


def examine(answers: Answers) -> Iterator[Finding]:
    """Examine the clocks for a tenth of a second, and note how late timers are."""
    reading = read()
    answers.late = reading.late
    yield from judge(reading)


def read() -> Reading:
    """Read the clocks; takes a tenth of a second."""
    raw, steady = time.clock_gettime(time.CLOCK_MONOTONIC_RAW), time.monotonic()
    latest = 0.0
    for _ in range(_SLEEPS):
        before = time.monotonic()
        time.sleep(_SLEEP)
        latest = max(latest, time.monotonic() - before - _SLEEP)
    steady = time.monotonic() - steady
    raw = time.clock_gettime(time.CLOCK_MONOTONIC_RAW) - raw
    slept = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return Reading(latest, steady / raw - 1, slept, time.time())


def judge(reading: Reading) -> Iterator[Finding]:
    """Return a finding per clock: whether leases and timers can rely on it."""
    yield _punctuality(reading.late)
    yield _drift(reading.drift)
    yield _suspended(reading.slept)
    yield _date(reading.date)


def _punctuality(latest: float) -> Finding:
    found = f"a sleep of {_SLEEP * 1e3:g} ms took at most {latest * 1e3:.1f} ms longer"
    if latest > _LATE:
        return warning(
            SECTION, "timers", found, f"{_CAUSE} Give heartbeats a longer --lease; stop what runs."
        )
    return ok(SECTION, "timers", found)


def _drift(rate: float) -> Finding:
    found = f"the monotonic clock is within {abs(rate):.2%} of the hardware's"
    if abs(rate) > _DRIFT:
        return warning(
            SECTION,
            "drift",
            found,
            "Leases are counted by it. See what slews the time (chronyc tracking).",
        )
    return ok(SECTION, "drift", found)


def _suspended(seconds: float) -> Finding:
    if seconds > 1.0:
        return warning(
            SECTION,
            "sleep",
            f"this machine slept for {seconds:,.0f} s since it was started",
            "While it sleeps, leases that it grants stand still; leases that it holds elsewhere "
            "expire. Keep it from sleeping.",
        )
    return ok(SECTION, "sleep", "this machine has not slept since it was started")


def _date(now: float) -> Finding:
    text = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    number = (now - incarnation.EPOCH) * incarnation.TICKS
    if not 1 <= number <= incarnation.LAST:
        return failure(
            SECTION,
            "date",
            f"{text}: job ids are counted from 2025 to 2042",
            "Set the clock (timedatectl set-ntp true).",
        )
    return ok(SECTION, "date", text)
