# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts of table entries.

P4Runtime 1.4.1, "Idle-timeout": an entry that no packet hits for its timeout is reported, and again
after each further timeout. BMv2 checks its entries once per second. This switch checks a table when
its next entry may be due, but at most every 10 ms. Large tables are checked less often, to save the
data plane's time.
"""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_switch.state.tables import Table, TableEntry
from p4reduce_switch.state.timers import Timers

_SHORTEST_NS = 10_000_000
_PER_ENTRY_NS = 20_000

IdleSink = Callable[[str, list[TableEntry]], None]
"""Takes the name of a table and its idle entries."""


class IdleMonitor:
    """Watches the entries of one table. Used by the data plane's thread only."""

    def __init__(self, table: Table, timers: Timers) -> None:
        self.sink: IdleSink = lambda *_: None  # until a server asks for them
        self._table = table
        self._timers = timers
        self._next_ns: int | None = None  # when the table will be checked

    def start(self, entry: TableEntry, timeout_ns: int) -> None:
        """Give an entry a timeout from now on; 0 means none."""
        entry.idle_timeout_ns = timeout_ns
        entry.last_hit_ns = entry.idle_since_ns = self._timers.clock()
        if timeout_ns:
            self._look_at(entry.idle_since_ns + timeout_ns)

    def _look_at(self, when_ns: int) -> None:
        now = self._timers.clock()
        shortest = max(_SHORTEST_NS, _PER_ENTRY_NS * self._table.entry_count)
        when_ns = max(when_ns, now + shortest)
        if self._next_ns is None or when_ns < self._next_ns:
            self._next_ns = when_ns
            self._timers.call_after(when_ns - now, lambda: self._sweep(when_ns))

    def _sweep(self, when_ns: int) -> None:
        if when_ns != self._next_ns:
            return  # an earlier look was asked for meanwhile, and has asked for the next
        self._next_ns = None
        now = self._timers.clock()
        idle = []
        due = []
        for entry in self._table.entries():
            if not entry.idle_timeout_ns:
                continue
            since = max(entry.last_hit_ns, entry.idle_since_ns)
            if now - since >= entry.idle_timeout_ns:
                idle.append(entry)
                since = entry.idle_since_ns = now
            due.append(since + entry.idle_timeout_ns)
        if due:
            self._look_at(min(due))
        if idle:
            self.sink(self._table.name, idle)
