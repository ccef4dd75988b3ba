# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts, by a clock of the test's and by P4Runtime (programs/idle.p4)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from p4reduce_switch.state.tables import TableEntry
from p4rt_client import INSERT, MODIFY, Builder, Client, exact, ternary
from pipeline_programs import config, make
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

BUILD = Builder("idle")
AGES, AGES_TOO = "I.ages", "I.ages_too"
MS = 1_000_000
HOUR = 3600 * 1000 * MS


class Bench:
    """The program with a clock, and what it reports as idle: (table, keys) by time."""

    def __init__(self) -> None:
        self.now = 7
        self.pipeline = make(config("idle"), clock=lambda: self.now)
        self.reports: list[tuple[int, str, list[Any]]] = []
        for monitor in self.pipeline.idle.values():
            monitor.sink = self._report

    def _report(self, table: str, entries: list[TableEntry]) -> None:
        self.reports.append(((self.now - 7) // MS, table, [entry.match for entry in entries]))

    def insert(self, key: int, timeout_ms: int) -> TableEntry:
        entry = TableEntry((key,), 0, "NoAction", ())
        self.pipeline.tables[AGES].insert(entry)
        self.pipeline.idle[AGES].start(entry, timeout_ms * MS)
        return entry

    def run_until(self, end_ms: int, hits: dict[int, int] | None = None) -> list[Any]:
        """Step by step; `hits` gives the key that a packet has at a time."""
        while self.now < 7 + end_ms * MS:
            self.now += MS
            at = (self.now - 7) // MS
            if hits and at in hits:
                self.pipeline.process(0, bytes((hits[at], 0, 0)))
            self.pipeline.timers.run_due()
        reports, self.reports = self.reports, []
        return reports


def test_an_idle_entry_is_reported_once_a_timeout() -> None:
    bench = Bench()
    bench.insert(1, 50)
    bench.insert(2, 0)
    assert bench.run_until(160) == [(50 * n, AGES, [(1,)]) for n in (1, 2, 3)]


def test_hits_put_the_report_off() -> None:
    bench = Bench()
    entry = bench.insert(1, 50)
    assert bench.run_until(139, {30: 1, 60: 1, 90: 1, 100: 2}) == []
    assert bench.pipeline.timers.clock() - entry.last_hit_ns == 49 * MS
    assert bench.run_until(150) == [(140, AGES, [(1,)])]


def test_entries_that_are_idle_together_are_reported_together() -> None:
    bench = Bench()
    for key in (1, 2, 3):
        bench.insert(key, 40)
    assert bench.run_until(75, {20: 2}) == [(40, AGES, [(1,), (3,)]), (60, AGES, [(2,)])]


def test_deleted_and_changed_entries() -> None:
    bench = Bench()
    bench.insert(1, 40)
    other = bench.insert(2, 40)
    bench.run_until(20)
    bench.pipeline.tables[AGES].delete((1,), 0)
    bench.pipeline.idle[AGES].start(other, 100 * MS)
    assert bench.run_until(125) == [(120, AGES, [(2,)])]
    bench.pipeline.idle[AGES].start(other, 0)
    assert bench.run_until(400) == []


def test_a_short_timeout_does_not_keep_the_switch_busy() -> None:
    bench = Bench()
    entry = bench.insert(1, 0)
    bench.pipeline.idle[AGES].start(entry, 1)
    assert [at for at, _, _ in bench.run_until(35)] == [10, 20, 30]
    for key in range(2, 16):
        bench.insert(key, 0)
    bench.pipeline.tables[AGES].delete((1,), 0)
    assert bench.run_until(100) == []


# -- P4Runtime -----------------------------------------------------------------------------------


def entry(x: int = 1, **fields: Any) -> Any:
    return BUILD.entry(AGES, [exact(1, x)], ("I.hit", 1), **fields)


def next_notification(client: Client) -> Any:
    while True:
        message = client.next()
        if message.HasField("idle_timeout_notification"):
            return message.idle_timeout_notification


def test_notifications(start: Start) -> None:
    client = start("idle")
    timeout = 100 * MS
    long = entry(2, idle_timeout_ns=HOUR)
    client.write((INSERT, entry(idle_timeout_ns=timeout, controller_metadata=5)), (INSERT, long))
    told = next_notification(client)
    assert told.timestamp > 0
    (idle,) = told.table_entry
    wanted = BUILD.entry(AGES, [exact(1, 1)], idle_timeout_ns=timeout, controller_metadata=5)
    assert idle == wanted
    assert next_notification(client).table_entry[0] == wanted  # again, as it stays idle


def test_notifications_are_split_by_bytes(start_ours: Start) -> None:
    """Else they would end the stream of a client that takes messages of 4 MiB."""
    client = start_ours("idle")
    updates = [
        (INSERT, entry(n, idle_timeout_ns=300 * MS, metadata=bytes([n]) * 1_000_000))
        for n in range(12)
    ]
    for update in updates:
        client.write(update)
    seen: set[bytes] = set()
    while len(seen) < 12:
        seen |= {idle.metadata for idle in next_notification(client).table_entry}
    assert seen == {update[1].metadata for update in updates}


def test_notifications_of_entries_with_priority(start_ours: Start) -> None:
    client = start_ours("idle")
    key = [ternary(1, 4, 4)]
    before = time.time_ns()
    client.write(
        (
            INSERT,
            BUILD.entry(
                AGES_TOO, key, ("I.hit", 1), priority=9, idle_timeout_ns=20 * MS, metadata=b"mine"
            ),
        )
    )
    told = next_notification(client)
    assert told.timestamp >= before
    assert list(told.table_entry) == [
        BUILD.entry(AGES_TOO, key, priority=9, idle_timeout_ns=20 * MS, metadata=b"mine")
    ]


def test_timeouts_are_read_back(start: Start) -> None:
    client = start("idle")
    client.write((INSERT, entry(idle_timeout_ns=HOUR)), (INSERT, entry(2)))

    def read() -> list[Any]:
        return sorted(client.read(BUILD.entry(AGES)), key=lambda e: e.match[0].exact.value)

    assert read() == [entry(idle_timeout_ns=HOUR), entry(2)]
    client.write((MODIFY, entry(2, idle_timeout_ns=2 * HOUR)), (MODIFY, entry()))
    assert read() == [entry(), entry(2, idle_timeout_ns=2 * HOUR)]


def test_time_since_last_hit(start_ours: Start) -> None:
    client = start_ours("idle")
    before = time.monotonic_ns()
    client.write((INSERT, entry()), (INSERT, entry(2, idle_timeout_ns=HOUR)))
    asked = BUILD.entry(AGES, time_since_last_hit={})

    def elapsed() -> list[int]:
        return [e.time_since_last_hit.elapsed_ns for e in client.read(asked)]

    inserted = time.monotonic_ns()
    time.sleep(0.05)
    assert all(50 * MS <= n <= time.monotonic_ns() - before for n in elapsed())
    assert exchange(client, bytes((1, 0, 0))) == bytes((1, 0, 1))
    hit, not_hit = elapsed()
    assert hit < not_hit <= time.monotonic_ns() - before
    assert not_hit >= time.monotonic_ns() - inserted - 10_000 * MS
    assert not any(e.HasField("time_since_last_hit") for e in client.read(BUILD.entry(AGES)))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (entry(idle_timeout_ns=-1), "must not be negative"),
        (entry(time_since_last_hit={}), "can only be read"),
        (
            BUILD.entry(AGES, action=("NoAction",), is_default_action=True, idle_timeout_ns=5),
            "default entries have no idle timeout",
        ),
    ],
)
def test_refused(start_ours: Start, message: Any, said: str) -> None:
    client = start_ours("idle")
    code, text = client.refused(MODIFY if message.is_default_action else INSERT, message)
    assert (code, said in text) == ("INVALID_ARGUMENT", True), text


def test_default_entries_have_no_time(start_ours: Start) -> None:
    asked = BUILD.entry(AGES, is_default_action=True, time_since_last_hit={})
    assert start_ours("idle").read_refused(asked)[0] == "INVALID_ARGUMENT"
