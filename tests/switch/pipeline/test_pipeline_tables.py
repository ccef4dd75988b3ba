# SPDX-License-Identifier: Apache-2.0
"""Match-action tables, with packets (programs/tables.p4) and by themselves."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.errors import AlreadyThereError, ConstantError, FullError, NotThereError
from p4reduce_switch.state.tables import ActionInfo, MatchKey, Table, TableEntry
from pipeline_programs import config, load, make

pytestmark = pytest.mark.usefixtures("engine")

MISS = 0xFFFF
EXACT_ONE, EXACT_TWO, PREFIX, MASKED, RANGES, MAYBE, MIXED, CONSTANTS, ROUTES, NO_KEY, CHOSEN = (
    range(11)
)
NUMBERS = 11


@pytest.fixture
def pipeline() -> Pipeline:
    return load("tables")


def run(
    pipeline: Pipeline, which: int, a: int = 0, b: int = 0, c: int = 0
) -> tuple[int, int] | None:
    """(verdict, big) of the packet that comes out, None if it was dropped."""
    frame = struct.pack(">BHI", which, a, b) + c.to_bytes(6, "big") + bytes(2 + 256) + b"tail"
    out = pipeline.process(7, frame)
    if not out:
        return None
    ((port, answer),) = out
    assert port == 1
    assert answer[:13] == frame[:13]
    assert answer[-4:] == b"tail"
    return int.from_bytes(answer[13:15], "big"), int.from_bytes(answer[15:-4], "big")


def verdict(pipeline: Pipeline, which: int, a: int = 0, b: int = 0, c: int = 0) -> int:
    result = run(pipeline, which, a, b, c)
    assert result is not None
    return result[0]


def test_exact(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.exact_one"]
    assert verdict(pipeline, EXACT_ONE, a=5) == MISS
    table.insert(TableEntry((5,), 0, "I.set", (123,)))
    table.insert(TableEntry((6,), 0, "I.set_big", ((1 << 2048) - 2, 1)))
    assert verdict(pipeline, EXACT_ONE, a=5) == 123
    assert run(pipeline, EXACT_ONE, a=6) == (0, (1 << 2048) - 1)
    table.modify((5,), 0, "I.set", (124,))
    assert verdict(pipeline, EXACT_ONE, a=5) == 124
    table.delete((5,), 0)
    assert verdict(pipeline, EXACT_ONE, a=5) == MISS


def test_signed_key(pipeline: Pipeline) -> None:
    """It is looked up as the bits that a negative number has."""
    assert [verdict(pipeline, NUMBERS, a=a) for a in (5, 0x8005, 0x8001, 4)] == [5, 5, 6, MISS]


def test_direct_counter_counts_hits_and_survives_modify(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.exact_one"]
    assert table.has_direct_counter
    entry = TableEntry((5,), 0, "I.set", (1,))
    table.insert(entry)
    size = 13 + 2 + 256 + 4
    run(pipeline, EXACT_ONE, a=5)
    run(pipeline, EXACT_ONE, a=99)
    table.modify((5,), 0, "I.miss", ())
    run(pipeline, EXACT_ONE, a=5)
    assert (entry.packets, entry.bytes) == (2, 2 * size)
    assert table.find((5,), 0) is entry
    assert table.default_entry.packets == 1


def test_default_entry(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.exact_one"]
    table.set_default("I.set", (42,))
    assert verdict(pipeline, EXACT_ONE, a=1) == 42
    assert table.default_entry.args == (42,)
    table.reset_default()
    assert verdict(pipeline, EXACT_ONE, a=1) == MISS
    with pytest.raises(ConstantError):
        pipeline.tables["I.exact_two"].set_default("I.set", (1,))


def test_several_exact_fields_and_miss(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.exact_two"]
    assert [key.name for key in table.key] == ["hdr.key.a", "mac"]
    table.insert(TableEntry((5, 0xA0B0C0D0E0F0), 0, "I.set", (9,)))
    assert run(pipeline, EXACT_TWO, a=5, c=0xA0B0C0D0E0F0) == (9, 0)
    assert run(pipeline, EXACT_TWO, a=5, c=0xA0B0C0D0E0F1) == (MISS, 1)


def test_longest_prefix_wins(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.prefix"]
    assert run(pipeline, PREFIX, b=0x0A000001) is None
    for length, value in ((8, 8), (24, 24), (0, 100), (16, 16), (32, 32)):
        prefix = 0x0A0B0C0D
        table.insert(TableEntry(((prefix, length),), 0, "I.set", (value,)))
    assert run(pipeline, PREFIX, b=0x0A0B0C0D) == (32, 2)
    assert run(pipeline, PREFIX, b=0x0A0B0C0E) == (24, 2)
    assert run(pipeline, PREFIX, b=0x0A0B0D0D) == (16, 2)
    assert run(pipeline, PREFIX, b=0x0AFF0000) == (8, 2)
    assert run(pipeline, PREFIX, b=0x0B000000) == (100, 2)
    table.delete(((0x0A0B0000, 16),), 0)
    assert run(pipeline, PREFIX, b=0x0A0B0D0D) == (8, 2)


def test_prefix_with_an_exact_field(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.mixed"]
    table.insert(TableEntry((1, (0x0A000000, 8)), 0, "I.set", (8,)))
    table.insert(TableEntry((1, (0x0A0B0000, 16)), 0, "I.set", (16,)))
    table.insert(TableEntry((2, (0, 0)), 0, "I.set", (2,)))
    assert verdict(pipeline, MIXED, a=1, b=0x0A0B0001) == 16
    assert verdict(pipeline, MIXED, a=1, b=0x0A0C0001) == 8
    assert verdict(pipeline, MIXED, a=1, b=0x0B000000) == MISS
    assert verdict(pipeline, MIXED, a=2, b=0x0B000000) == 2


def test_larger_priority_wins(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.masked"]
    table.insert(TableEntry(((0x1200, 0xFF00), (0, 0)), 10, "I.set", (10,)))
    table.insert(TableEntry(((0, 0), (0, 0)), 1, "I.set", (1,)))
    table.insert(TableEntry(((0x1000, 0xF000), (5, 0xFFFFFFFF)), 20, "I.set", (20,)))
    assert verdict(pipeline, MASKED, a=0x1234, b=5) == 20
    assert verdict(pipeline, MASKED, a=0x1234, b=6) == 10
    assert verdict(pipeline, MASKED, a=0x2234, b=5) == 1


def test_same_priority_the_first_inserted_wins(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.masked"]
    table.insert(TableEntry(((0, 0), (5, 0xFFFFFFFF)), 7, "I.set", (1,)))
    table.insert(TableEntry(((9, 0xFFFF), (0, 0)), 7, "I.set", (2,)))
    assert verdict(pipeline, MASKED, a=9, b=5) == 1


def test_range(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.ranges"]
    table.insert(TableEntry(((10, 20), 1), 5, "I.set", (1,)))
    table.insert(TableEntry(((15, 15), 1), 9, "I.set", (2,)))
    found = {a: verdict(pipeline, RANGES, a=a, b=1) for a in (9, 10, 14, 15, 16, 20, 21)}
    assert found == {9: MISS, 10: 1, 14: 1, 15: 2, 16: 1, 20: 1, 21: MISS}
    assert verdict(pipeline, RANGES, a=15, b=2) == MISS


def test_optional_comes_as_ternary(pipeline: Pipeline) -> None:
    # p4c writes optional fields as ternary ones into the JSON.
    table = pipeline.tables["I.maybe"]
    assert [key.kind for key in table.key] == ["ternary", "ternary"]
    table.insert(TableEntry(((3, 0xFFFF), (0, 0)), 1, "I.set", (1,)))
    table.insert(TableEntry(((3, 0xFFFF), (4, (1 << 48) - 1)), 2, "I.set", (2,)))
    assert verdict(pipeline, MAYBE, a=3, c=5) == 1
    assert verdict(pipeline, MAYBE, a=3, c=4) == 2
    assert verdict(pipeline, MAYBE, a=4, c=4) == MISS


def test_const_entries(pipeline: Pipeline) -> None:
    """The first that matches wins, and P4Runtime's priorities say so."""
    table = pipeline.tables["I.constants"]
    assert table.is_const
    assert [entry.priority for entry in table.entries()] == [4, 3, 2, 1]
    assert all(entry.is_const for entry in table.entries())
    assert verdict(pipeline, CONSTANTS, a=0x1234) == 1
    assert verdict(pipeline, CONSTANTS, a=0x3456) == 3
    assert verdict(pipeline, CONSTANTS, a=0x3556) == 4
    assert verdict(pipeline, CONSTANTS, a=0x5000) == MISS
    match, priority = table.entries()[0].match, table.entries()[0].priority
    with pytest.raises(ConstantError):
        table.insert(TableEntry(((0, 0), 1), 1, "I.set", (1,)))
    with pytest.raises(ConstantError):
        table.modify(match, priority, "I.set", (1,))
    with pytest.raises(ConstantError):
        table.delete(match, priority)


@pytest.mark.parametrize("count", [1, 7, 60])
def test_many_const_entries(count: int) -> None:
    """Compiled into tests of bits: the first one that matches counts, as in a lookup."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    masks = [0, 0x8000, 0xC000, 0x00FF, 0x0F0F, 0xFFFF, *(rng.randrange(1 << 16) for _ in range(3))]
    given = [(rng.choice(masks), rng.randrange(1 << 16)) for _ in range(count)]
    given = list(dict.fromkeys((mask, value & mask) for mask, value in given))
    program = json.loads(config("tables"))
    [constants] = [
        table
        for control in program["pipelines"]
        for table in control["tables"]
        if table["name"] == "I.constants"
    ]
    template = constants["entries"][0]
    constants["entries"] = []
    for number, (mask, value) in enumerate(given):
        entry = json.loads(json.dumps(template))
        entry["match_key"][0] |= {"key": f"{value:#06x}", "mask": f"{mask:#06x}"}
        entry["action_entry"]["action_data"] = [f"{number:#x}"]
        entry["priority"] = number + 1
        constants["entries"].append(entry)
    constants["max_size"] = len(given)
    pipeline = make(json.dumps(program).encode())
    asked = [rng.randrange(1 << 16) for _ in range(300)]
    asked += [value | rng.randrange(1 << 16) & ~mask for mask, value in given]

    def found(a: int) -> int:
        fit = [number for number, (mask, value) in enumerate(given) if a & mask == value]
        return fit[0] if fit else MISS

    for a in asked:
        assert verdict(pipeline, CONSTANTS, a=a) == found(a), f"{a:#x} in {given}"

    # They may be changed where P4Runtime says that they are not constant.
    table = pipeline.tables["I.constants"]
    table.open(len(given) + 1, [False] * len(given), None)
    for a in asked[:20]:
        assert verdict(pipeline, CONSTANTS, a=a) == found(a)
    first = table.entries()[0]
    table.modify(first.match, first.priority, "I.set", (999,))
    assert verdict(pipeline, CONSTANTS, a=given[0][1]) == 999
    table.delete(first.match, first.priority)
    given[0] = 0, 1 << 16  # matches nothing
    for a in asked[:20]:
        assert verdict(pipeline, CONSTANTS, a=a) == found(a)


def test_const_prefixes(pipeline: Pipeline) -> None:
    assert verdict(pipeline, ROUTES, b=0x0A0B0001) == 16
    assert verdict(pipeline, ROUTES, b=0x0A0C0001) == 8
    assert verdict(pipeline, ROUTES, b=0x0B000000) == MISS


def test_table_without_key(pipeline: Pipeline) -> None:
    assert verdict(pipeline, NO_KEY) == 77
    pipeline.tables["I.no_key"].set_default("I.miss", ())
    assert verdict(pipeline, NO_KEY) == MISS


def test_action_run(pipeline: Pipeline) -> None:
    table = pipeline.tables["I.chosen"]
    table.insert(TableEntry((1,), 0, "I.set", (5,)))
    table.insert(TableEntry((2,), 0, "I.drop", ()))
    assert run(pipeline, CHOSEN, a=1) == (5, 110)
    assert run(pipeline, CHOSEN, a=2) is None
    assert run(pipeline, CHOSEN, a=3) == (MISS, 112)
    table.set_default("I.set", (6,))
    assert run(pipeline, CHOSEN, a=3) == (6, 110)


# -- The tables themselves -------------------------------------------------------------------------

ACTIONS = (ActionInfo("a", (("x", 8),)), ActionInfo("none", ()))


def table_of(*key: MatchKey, size: int = 1000) -> Table:
    return Table("t", key, size, ACTIONS, ("none", ()))


def test_errors() -> None:
    table = table_of(MatchKey("k", 8, "exact"), size=2)
    table.insert(TableEntry((1,), 0, "a", (1,)))
    with pytest.raises(AlreadyThereError):
        table.insert(TableEntry((1,), 0, "none", ()))
    table.insert(TableEntry((2,), 0, "a", (1,)))
    with pytest.raises(FullError):
        table.insert(TableEntry((3,), 0, "a", (1,)))
    table.delete((1,), 0)
    table.insert(TableEntry((3,), 0, "a", (1,)))
    with pytest.raises(NotThereError):
        table.delete((1,), 0)
    with pytest.raises(NotThereError):
        table.modify((1,), 0, "none", ())
    assert table.find((1,), 0) is None
    assert [entry.match for entry in table.entries()] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (TableEntry((256,), 0, "a", (1,)), "8 bits"),
        (TableEntry((1, 2), 0, "a", (1,)), "1 key fields"),
        (TableEntry(((1, 2),), 0, "a", (1,)), "takes an int"),
        (TableEntry((1,), 0, "b", (1,)), "no action b"),
        (TableEntry((1,), 0, "a", ()), "1 arguments"),
        (TableEntry((1,), 0, "a", (256,)), "8 bits"),
    ],
)
def test_entries_that_do_not_fit(entry: TableEntry, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table_of(MatchKey("k", 8, "exact")).insert(entry)


@pytest.mark.parametrize(
    ("kind", "value"), [("lpm", (0, 9)), ("range", (2, 1)), ("ternary", 3), ("ternary", (0, 256))]
)
def test_key_values_that_do_not_fit(kind: str, value: object) -> None:
    with pytest.raises(ValueError, match="key field k of table t"):
        table_of(MatchKey("k", 8, kind)).insert(TableEntry((value,), 0, "none", ()))  # type: ignore[arg-type]


def test_keys_are_canonical() -> None:
    table = table_of(MatchKey("p", 16, "lpm"))
    table.insert(TableEntry(((0x1234, 8),), 99, "none", ()))
    (entry,) = table.entries()
    assert (entry.match, entry.priority) == (((0x1200, 8),), 0)
    assert table.find(((0x12FF, 8),), 5) is entry
    with pytest.raises(AlreadyThereError):
        table.insert(TableEntry(((0x1255, 8),), 0, "none", ()))


def test_random_ternary_tables_against_a_linear_search() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(20):
        table = table_of(
            MatchKey("a", 8, "ternary"), MatchKey("b", 8, "range"), MatchKey("c", 4, "optional")
        )
        present: list[TableEntry] = []
        for step in range(120):
            if present and generator.random() < 0.3:
                entry = present.pop(generator.randrange(len(present)))
                table.delete(entry.match, entry.priority)
            else:
                mask = generator.choice((0, 0x0F, 0xF0, 0xFF))
                low, high = sorted(generator.choices(range(256), k=2))
                optional = generator.choice((None, generator.randrange(16)))
                match = ((generator.randrange(256) & mask, mask), (low, high), optional)
                entry = TableEntry(match, generator.randrange(1, 6), "a", (step,))
                try:
                    table.insert(entry)
                except AlreadyThereError:
                    continue
                present.append(entry)
            a, b, c = generator.randrange(256), generator.randrange(256), generator.randrange(16)
            hits = [
                e
                for e in present
                if a & e.match[0][1] == e.match[0][0]  # type: ignore[index]
                and e.match[1][0] <= b <= e.match[1][1]  # type: ignore[index]
                and e.match[2] in (None, c)
            ]
            # The first of the largest priority: max() gives the first of equal ones.
            wanted = max(hits, key=lambda e: e.priority, default=None)
            slot = table.lookup((a, b, c))
            assert (slot[2] if slot else None) is wanted


# -- Direct counters of misses -------------------------------------------------------------------

EXACT, TERNARY, LPM = "ingress.exact_table", "ingress.ternary_table", "ingress.lpm_table"
CONST, KEYLESS = "ingress.const_table", "ingress.keyless_table"


def counting(constant_defaults: bool) -> str:
    """p4rt_features with a direct counter for each table, and defaults that can be changed or
    not."""
    program = json.loads(config("p4rt_features"))
    program["counter_arrays"] = [c for c in program["counter_arrays"] if not c["is_direct"]]
    for table in program["pipelines"][0]["tables"]:
        table["with_counters"] = True
        table["default_entry"] |= {"action_const": constant_defaults}
        program["counter_arrays"].append(
            {
                "name": f"{table['name']}.hits",
                "id": 100,
                "is_direct": True,
                "binding": table["name"],
            }
        )
    return json.dumps(program)


@pytest.mark.parametrize("constant_defaults", [True, False])
def test_a_miss_counts_for_the_default_entry(constant_defaults: bool) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    pipeline = make(counting(constant_defaults))
    tables = pipeline.tables
    tables[EXACT].insert(TableEntry((2, 1), 0, "ingress.forward", (3,)))
    tables[TERNARY].insert(TableEntry(((4, 4), 0x88B5), 1, "ingress.forward", (3,)))
    tables[LPM].insert(TableEntry(((1 << 47, 1),), 0, "ingress.forward", (3,)))
    wanted: Counter[tuple[str, bool]] = Counter()
    sizes: Counter[tuple[str, bool]] = Counter()
    for _ in range(300):
        dst, src = rng.choice((2, 4, 12, 9)), rng.choice((0, 1 << 47))
        ethertype, length = rng.choice((0x88B5, 0x0800)), rng.randrange(50)
        found = [(KEYLESS, False), (CONST, ethertype == 0x88B5), (EXACT, dst == 2)]
        if dst != 2:
            hit = bool(dst & 4) and ethertype == 0x88B5
            found.append((TERNARY, hit))
            if not hit:
                found.append((LPM, bool(src)))
        frame = dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ethertype.to_bytes(2, "big")
        pipeline.process(1, frame + bytes(length))
        wanted.update(found)
        sizes.update(dict.fromkeys(found, 14 + length))
    for name, table in tables.items():
        if name in (KEYLESS, CONST, EXACT, TERNARY, LPM):
            hits = table.entries()
            of_hits = sum(e.packets for e in hits), sum(e.bytes for e in hits)
            assert of_hits == (wanted[name, True], sizes[name, True]), name
            default = table.default_entry
            of_misses = default.packets, default.bytes
            assert of_misses == (wanted[name, False], sizes[name, False]), name
            assert of_misses[0] > 0


def test_the_count_of_misses_outlives_the_action() -> None:
    pipeline = make(counting(constant_defaults=False))
    table = pipeline.tables[EXACT]
    frame = bytes(14)
    pipeline.process(1, frame)
    table.set_default("ingress.forward", (3,))
    pipeline.process(1, frame)
    assert (table.default_entry.packets, table.default_entry.bytes) == (2, 28)
    table.default_entry.packets = 100
    pipeline.process(1, frame)
    assert table.default_entry.packets == 101
    table.reset_default()
    assert (table.default_entry.packets, table.default_entry.bytes) == (0, 0)
    pipeline.process(1, frame)
    assert table.default_entry.packets == 1
