# SPDX-License-Identifier: Apache-2.0
"""When the loops in C sleep although frames may have come: a worker's, and the switch's."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from link_ends import NO_LINKS
from p4reduce.machine_code import BackoffStructure
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import runtime

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

PATIENCE = 256  # frames in a row before the switch sleeps
ENOUGH = 12  # frames that make a sleep worth it
FRAME = 88e-6  # seconds; of 1,102 bytes at 100 Mbit/s
STEADY_NS = 20_000  # between the frames of several such links, as they come to the switch


class ReceiveBackoff:
    """A worker's."""

    def __init__(self, *, allowed: bool) -> None:
        self._shared = BackoffStructure(allowed=allowed)
        self._functions = CHeader("worker/receive_backoff.h").functions(runtime())

    @property
    def received_at(self) -> float:
        return float(self._shared.received_at)

    def receive(self, count: int, now: float) -> None:
        self._functions.p4r_receive_backoff_received(ctypes.byref(self._shared), count, now)

    def length(self, in_flight: int) -> float:
        """Seconds to sleep for, from the latest frame on; 0 or less: not at all."""
        until = self._functions.p4r_receive_backoff_until(ctypes.byref(self._shared), in_flight)
        return float(until) - self.received_at


def after_a_stream(apart: float, batch: int = 1, *, allowed: bool = True) -> ReceiveBackoff:
    backoff = ReceiveBackoff(allowed=allowed)
    now = 1000.0
    for _ in range(200 // batch):
        now += apart * batch
        backoff.receive(batch, now)
    return backoff


@pytest.mark.parametrize("batch", [1, 8, 40])
def test_a_worker_sleeps_while_a_part_of_what_is_under_way_comes(batch: int) -> None:
    assert after_a_stream(FRAME, batch).length(128) == pytest.approx(8 * FRAME, rel=0.01)


def test_a_worker_does_not_sleep_for_long() -> None:
    assert after_a_stream(4 * FRAME).length(128) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("apart", "in_flight"),
    [
        (FRAME, 1),  # a small tensor
        (FRAME, 31),  # less than two frames would come
        (10 * FRAME, 128),  # a slow link: the same, in the time that is allowed
        (2e-6, 128),  # too fast for a sleep to be worth it
    ],
)
def test_a_worker_does_not_sleep_where_that_brings_nothing(apart: float, in_flight: int) -> None:
    assert after_a_stream(apart).length(in_flight) <= 0


def test_a_worker_does_not_sleep_unless_it_is_allowed_and_has_measured() -> None:
    assert after_a_stream(FRAME, allowed=False).length(128) <= 0
    backoff = ReceiveBackoff(allowed=True)
    assert backoff.length(128) <= 0
    backoff.receive(31, 1000.0)
    assert backoff.length(128) <= 0


def test_a_pause_counts_as_a_slow_stream() -> None:
    backoff = after_a_stream(FRAME)
    backoff.receive(128, backoff.received_at + 10)
    assert backoff.length(128) <= 0


class PollBackoff:
    """The switch's."""

    def __init__(self, wake_fd: int) -> None:
        header = CHeader("loop/poll_backoff.h")
        self._shared: Any = header.structure("p4r_poll_backoff")()
        self._functions = header.functions(runtime())
        self._wake_fd = wake_fd
        self._now_ns = time.monotonic_ns() + 10**12  # so that it is never too late to sleep
        self.frame_ns = STEADY_NS
        self._call("init")

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._functions, f"p4r_poll_backoff_{name}")
        function(ctypes.byref(self._shared), *arguments)

    @property
    def threshold(self) -> int:
        return int(self._shared.threshold)

    def look(self, *, waited_ns: int = 0, deadline_ns: int = 2**62) -> bool:
        """Look for frames; the next look is due far in the future, unless a deadline says so.

        Returns whether it would have slept first.
        """
        self._shared.looked_ns = began = self._now_ns
        self._call("sleep", deadline_ns, self._wake_fd)
        self._now_ns += waited_ns
        self._call("polled", began, self._now_ns)
        return bool(self._shared.has_slept)

    def take(self, by_interfaces: int, by_others: int = 0) -> None:
        self._call("received", by_interfaces, by_others)
        self._now_ns += by_interfaces * self.frame_ns


@pytest.fixture
def backoff() -> Iterator[PollBackoff]:
    wake_fd = os.eventfd(1)  # which ends every sleep at once
    yield PollBackoff(wake_fd)
    os.close(wake_fd)


def stream(backoff: PollBackoff, frames: int = PATIENCE) -> None:
    for _ in range(frames):
        backoff.look()
        backoff.take(1)


def test_the_switch_sleeps_in_a_steady_stream_alone(backoff: PollBackoff) -> None:
    stream(backoff, PATIENCE - 1)
    assert not backoff.look()
    backoff.take(1)
    for _ in range(10):
        assert backoff.look()
        backoff.take(ENOUGH)


def test_the_switch_does_not_sleep_where_frames_come_fast(backoff: PollBackoff) -> None:
    """They are there in batches anyway, and their senders may wait for what comes back."""
    backoff.frame_ns = 6_000  # 16 of them are less than 0.1 ms
    for batch in (1, 8, 64):
        for _ in range(2 * PATIENCE // batch):
            backoff.look()
            backoff.take(batch)
        assert not backoff.look()
    backoff.frame_ns = 7_000
    for _ in range(10):
        backoff.look()
        backoff.take(ENOUGH)
    assert backoff.look()


def test_the_switch_does_not_sleep_where_there_are_pauses(backoff: PollBackoff) -> None:
    for _ in range(100):
        stream(backoff, PATIENCE // 2)
        assert not backoff.look(waited_ns=10**6)
        backoff.take(1)


def test_the_switch_does_not_sleep_while_other_ports_have_frames(backoff: PollBackoff) -> None:
    stream(backoff)
    assert backoff.look()
    backoff.take(ENOUGH, 1)
    assert not backoff.look()


def test_a_switch_with_a_deadline_that_has_passed_does_not_sleep(backoff: PollBackoff) -> None:
    stream(backoff)
    assert not backoff.look(deadline_ns=1)
    backoff.take(1)
    assert backoff.look()


def test_sleeps_that_bring_too_little_become_rare_and_common_again(backoff: PollBackoff) -> None:
    """A few frames that go to and fro come one after the other as well, but wait for each other."""
    wanted = PATIENCE
    for _ in range(4):
        stream(backoff, wanted)
        assert backoff.look()
        backoff.take(ENOUGH - 1)  # all that was under way
        wanted *= 2
        assert backoff.threshold == wanted
    stream(backoff, wanted)
    while backoff.threshold > PATIENCE:
        assert backoff.look()
        backoff.take(ENOUGH)
