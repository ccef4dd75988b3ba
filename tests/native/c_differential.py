# SPDX-License-Identifier: Apache-2.0
"""The same program on both engines, driven alike: what differs is an error."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import p4reduce_switch.pipeline as pipeline_module
import pytest
from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.clone_sessions import CloneSession
from p4reduce_switch.state.digests import DigestConfig
from p4reduce_switch.state.meters import Rates
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.profiles import GroupRef, IndirectTable, MemberRef
from p4reduce_switch.state.tables import MatchKey, MatchKind, MatchValue, Table, TableEntry

START_NS = 5_000_000_000
VALUE_SET_KINDS: tuple[MatchKind, ...] = ("exact", "exact", "ternary", "lpm", "range")


class Pair:
    """A program on both engines, with one clock that the test sets.

    Attributes:
        python, native: the pipelines.
        now_ns: the time.
    """

    def __init__(
        self, config: bytes | str, monkeypatch: pytest.MonkeyPatch, **options: Any
    ) -> None:
        self.now_ns = START_NS
        clock = SimpleNamespace(monotonic_ns=self._clock)
        monkeypatch.setattr(pipeline_module, "time", clock)
        self.python = Pipeline(config, clock=self._clock, **options)
        self.native = NativePipeline(config, clock=self._clock, **options)
        self.both: tuple[Pipeline, Pipeline] = (self.python, self.native)
        self.digests: tuple[list[Any], list[Any]] = ([], [])
        for pipeline, taken in zip(self.both, self.digests, strict=True):
            for digest in pipeline.digests.values():
                digest.sink = lambda *what, taken=taken: taken.append(what)

    def _clock(self) -> int:
        return self.now_ns

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run a frame on both; asserts that the same comes of it."""
        wanted = self.python.process(port, frame)
        found = self.native.process(port, frame)
        assert found == wanted, f"frame {frame.hex()} at port {port}"
        return wanted

    def check(self) -> None:
        """Assert that all state is the same."""
        python, native = self.both
        assert native.stats.as_dict() == python.stats.as_dict()
        for name, register in python.registers.items():
            assert list(native.registers[name].cells) == list(register.cells), name
        for name, counter in python.counters.items():
            assert list(native.counters[name].packets) == list(counter.packets), name
            assert list(native.counters[name].bytes) == list(counter.bytes), name
        for name, table in python.tables.items():
            assert seen(native.tables[name]) == seen(table), name
        for pipeline in self.both:
            pipeline.timers.run_due()
        assert self.digests[0] == self.digests[1]


def seen(table: Table) -> list[Any]:
    """What a controller sees of a table's entries."""
    return [
        (e.match, e.priority, e.action, e.args, e.target, e.packets, e.bytes, e.last_hit_ns)
        for e in table.entries()
    ]


# -- Random contents -------------------------------------------------------------------------------


class Filler:
    """Fills the state of programs with random things, the same on both engines."""

    def __init__(self, generator: random.Random, pair: Pair) -> None:
        self._random = generator
        self._pair = pair

    def everything(self) -> None:
        generator, python = self._random, self._pair.python
        for profile in python.profiles.values():
            self._profile(profile.name)
        for table in python.tables.values():
            for _ in range(generator.choice((0, 3, 40))):
                self.entry(table.name)
            self.default(table.name)
        for group in range(1, 8):
            replicas = self._replicas()
            for pipeline in self._pair.both:
                pipeline.multicast.insert(group, replicas)
        for session in range(8):
            length = generator.choice((0, 20, 100))
            made = CloneSession(tuple(self._replicas()), 0, length)
            for pipeline in self._pair.both:
                pipeline.clone_sessions.insert(session, made)
        for name, value_set in python.value_sets.items():
            key = [
                MatchKey(field.name, field.width, generator.choice(VALUE_SET_KINDS))
                for field in value_set.key
            ]
            count = min(generator.randrange(6), value_set.size)
            members = [tuple(map(self._match, key)) for _ in range(count)]
            for pipeline in self._pair.both:
                pipeline.value_sets[name].match_by(key)
                pipeline.value_sets[name].replace(members)
        for name, array in python.meters.items():
            for index in range(len(array.cells)):
                rates = self._rates()
                for pipeline in self._pair.both:
                    pipeline.meters[name].cells[index].configure(rates)
        for name in python.digests:
            config = generator.choice((None, DigestConfig(0, 0, 0), DigestConfig(10**6, 4, 10**9)))
            for pipeline in self._pair.both:
                pipeline.digests[name].configure(config)

    def change(self) -> None:
        """One change of a random table."""
        tables = list(self._pair.python.tables)
        if not tables:
            return
        name = self._random.choice(tables)
        table = self._pair.python.tables[name]
        entries = table.entries()
        what = self._random.randrange(4)
        if what == 0 or not entries or table.is_const:
            self.entry(name)
        elif what == 1:
            entry = self._random.choice(entries)
            for pipeline in self._pair.both:
                pipeline.tables[name].delete(entry.match, entry.priority)
        elif what == 2 and not isinstance(table, IndirectTable):
            entry = self._random.choice(entries)
            action, args = self._action(table)
            for pipeline in self._pair.both:
                pipeline.tables[name].modify(entry.match, entry.priority, action, args)
        else:
            self.default(name)

    def entry(self, name: str) -> None:
        table = self._pair.python.tables[name]
        if table.is_const or not table.key or table.entry_count >= table.size:
            return
        match = tuple(self._match(field) for field in table.key)
        priority = self._random.choice((1, 2, 3, 10, 1000))
        if table.find(match, priority) is not None:
            return
        target = None
        action, args = self._action(table)
        if isinstance(table, IndirectTable):
            profile = table.profile
            targets = [MemberRef(m) for m in profile.members]
            targets += [GroupRef(g) for g in profile.groups]
            if not targets:
                return
            target, action, args = self._random.choice(targets), "", ()
        meters = [m.name for m in self._pair.python.meters.values() if m.table == name]
        rates = self._rates()
        for pipeline in self._pair.both:
            entry = TableEntry(match, priority, action, args, target=target)
            pipeline.tables[name].insert(entry)
            for meter in meters:
                entry.meter = pipeline.meters[meter].make()
                entry.meter.configure(rates)

    def default(self, name: str) -> None:
        table = self._pair.python.tables[name]
        if table.const_default_action or isinstance(table, IndirectTable):
            return
        action, args = self._action(table)
        reset = self._random.random() < 0.3
        for pipeline in self._pair.both:
            if reset:
                pipeline.tables[name].reset_default()
            else:
                pipeline.tables[name].set_default(action, args)

    def _profile(self, name: str) -> None:
        profile = self._pair.python.profiles[name]
        for member in range(1, min(profile.size, 6) + 1):
            action, args = self._action(profile.tables[0])
            if not action:
                continue
            for pipeline in self._pair.both:
                pipeline.profiles[name].insert_member(member, action, args)
        if profile.has_selector:
            for group in range(1, 4):
                members = [m for m in profile.members if self._random.random() < 0.6]
                weights = dict.fromkeys(members, 1)
                for pipeline in self._pair.both:
                    pipeline.profiles[name].insert_group(group, weights, 10)

    def _action(self, table: Table) -> tuple[str, tuple[int, ...]]:
        info = self._random.choice(list(table.actions.values()))
        return info.name, tuple(self._value(width) for _, width in info.params)

    def _replicas(self) -> list[Replica]:
        count = self._random.randrange(4)
        return [
            Replica(self._random.randrange(512), self._random.randrange(9)) for _ in range(count)
        ]

    def _port(self) -> int:
        return self._random.randrange(512)

    def _rates(self) -> Rates | None:
        if self._random.random() < 0.3:
            return None
        draw = self._random.choice
        return Rates(*(draw((0, 1, 50, 10**4, 10**18)) for _ in range(4)))

    def _value(self, width: int) -> int:
        """Small or full of ones more often than not, so that things meet."""
        kind = self._random.random()
        if kind < 0.6:
            return self._random.randrange(8) & (1 << width) - 1
        if kind < 0.8:
            return self._random.getrandbits(width)
        return (1 << width) - 1 - (self._random.randrange(3) & (1 << width) - 1)

    def _match(self, field: MatchKey) -> MatchValue:
        value = self._value(field.width)
        if field.kind == "exact":
            return value
        if field.kind == "optional":
            return self._random.choice((value, None))
        if field.kind == "lpm":
            return value, self._random.randrange(field.width + 1)
        if field.kind == "ternary":
            return value, self._random.choice((0, self._value(field.width), (1 << field.width) - 1))
        low, high = sorted((value, self._value(field.width)))
        return low, high


def mutilated(generator: random.Random, frames: Iterable[bytes]) -> Iterable[bytes]:
    """The frames, some of them with wrong bits, cut off, or longer."""
    for frame in frames:
        changed = bytearray(frame)
        what = generator.random()
        if what < 0.1 and changed:
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        elif what < 0.2:
            del changed[generator.randrange(len(changed) + 1) :]
        elif what < 0.25:
            changed += generator.randbytes(generator.randrange(300))
        yield bytes(changed)
