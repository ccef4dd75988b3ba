# SPDX-License-Identifier: Apache-2.0
"""Meters: colours by a clock of the test's, and P4Runtime's entities (programs/meters.p4)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.state.meters import GREEN, RED, YELLOW, Meter, Rates
from p4reduce_switch.state.tables import TableEntry
from p4rt_client import DELETE, INSERT, MODIFY, Builder, Client, exact, ternary
from pipeline_programs import config, make
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("two_targets",)

BUILD = Builder("meters")
PACKETS, BYTES = BUILD.id("I.by_packets"), BUILD.id("I.by_bytes")
MEASURED, WEIGHED = "I.measured", "I.weighed"
UNSET = 0x77
SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        return self.now


def frame(x: int = 0, index: int = 0, size: int = 20) -> bytes:
    return bytes((x, index, 9, 9, 9, 9)).ljust(size, b".")


# -- Colours -------------------------------------------------------------------------------------


def test_colours_of_packets() -> None:
    clock = Clock()
    meter = Meter(clock, in_bytes=False)
    assert [meter.execute(1) for _ in range(5)] == [GREEN] * 5
    meter.configure(Rates(cir=1, cburst=2, pir=2, pburst=4))
    assert [meter.execute(1) for _ in range(6)] == [GREEN] * 2 + [YELLOW] * 2 + [RED] * 2
    clock.now += SECOND // 2  # a peak token, and half of a committed one
    assert [meter.execute(1) for _ in range(2)] == [YELLOW, RED]
    clock.now += SECOND // 2
    assert [meter.execute(1) for _ in range(2)] == [GREEN, RED]
    clock.now += 100 * SECOND  # no more than the bursts
    assert [meter.execute(1) for _ in range(5)] == [GREEN] * 2 + [YELLOW] * 2 + [RED]
    meter.configure(None)
    assert meter.execute(1) == GREEN


def test_colours_of_bytes() -> None:
    clock = Clock()
    meter = Meter(clock, in_bytes=True)
    meter.configure(Rates(cir=1000, cburst=100, pir=1000, pburst=150))
    assert [meter.execute(n) for n in (60, 60, 60, 30)] == [GREEN, YELLOW, RED, GREEN]
    clock.now += 50_000_000  # 50 tokens each
    assert [meter.execute(n) for n in (51, 50, 1)] == [RED, GREEN, RED]


def test_against_rfc_2698() -> None:
    """The two buckets of section 3, in exact numbers, on random packets."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    seen = set()
    # Several meters: with one alone, its bursts may be such that no packet is ever yellow.
    for _ in range(20):
        clock = Clock()
        meter = Meter(clock, in_bytes=True)
        # A rate of whole tokens a microsecond leaves nothing to rounding.
        cir, pir = 1_000_000 * rng.randrange(1, 5), 1_000_000 * rng.randrange(5, 9)
        cburst, pburst = rng.randrange(1000, 5000), rng.randrange(1000, 5000)
        meter.configure(Rates(cir, cburst, pir, pburst))
        committed, peak = cburst, pburst
        for _ in range(100):
            micros = rng.choice((0, 10, 100, 500))
            clock.now += micros * 1000
            committed = min(cburst, committed + micros * cir // 1_000_000)
            peak = min(pburst, peak + micros * pir // 1_000_000)
            size = rng.randrange(64, 1500)
            if peak < size:
                color = RED
            elif committed < size:
                color, peak = YELLOW, peak - size
            else:
                color, peak, committed = GREEN, peak - size, committed - size
            assert meter.execute(size) == color
            seen.add(color)
    assert seen == {GREEN, YELLOW, RED}


def test_direct_meters_in_the_pipeline() -> None:
    clock = Clock()
    pipeline = make(config("meters"), clock=clock)
    table = pipeline.tables[MEASURED]
    assert pipeline.process(0, frame(1, 8))[0][1][:6] == bytes((1, 8, 9, 9, UNSET, 0))
    table.insert(
        TableEntry((1,), 0, "I.ignore", ())
    )  # the result is there whatever the action does
    assert pipeline.process(0, frame(1, 8))[0][1][:6] == bytes((1, 8, 9, 9, GREEN, 0))
    (entry,) = table.entries()
    entry.meter = pipeline.meters["I.rate"].make()
    entry.meter.configure(Rates(1, 1, 1, 2))
    colors = [pipeline.process(0, frame(1, 8))[0][1][4] for _ in range(3)]
    assert colors == [GREEN, YELLOW, RED]
    clock.now += SECOND
    assert pipeline.process(0, frame(1, 8))[0][1][4] == GREEN


# -- P4Runtime -----------------------------------------------------------------------------------


def rates(cir: int, cburst: int, pir: int, pburst: int) -> dict[str, int]:
    return {"cir": cir, "cburst": cburst, "pir": pir, "pburst": pburst}


def meter_entry(meter: int, index: int | None, config: dict[str, int] | None = None) -> Any:
    message = p4rt.MeterEntry(meter_id=meter, config=config)
    if index is not None:
        message.index.index = index
        message.index.SetInParent()
    return message


def measured(x: int = 1, **fields: Any) -> Any:
    return BUILD.entry(MEASURED, [exact(1, x)], ("I.measure",), **fields)


def colors(client: Client, at: int, count: int, **where: int) -> list[int]:
    return [exchange(client, frame(**where))[at] for _ in range(count)]


def test_indirect_meters(start: Start) -> None:
    client = start("meters")
    assert colors(client, 2, 3, index=1) == [GREEN] * 3
    # Rates so low that no test runs long enough for a token.
    client.write((MODIFY, meter_entry(PACKETS, 1, rates(0, 2, 0, 3))))
    client.write((MODIFY, meter_entry(BYTES, 1, rates(0, 50, 0, 70))))
    out = [exchange(client, frame(index=1))[2:4] for _ in range(5)]
    assert [f[0] for f in out] == [GREEN, GREEN, YELLOW, RED, RED]
    assert [f[1] for f in out] == [GREEN, GREEN, YELLOW, RED, RED]
    assert exchange(client, frame(index=2))[2:4] == bytes((GREEN, GREEN))
    client.write((MODIFY, meter_entry(PACKETS, 1, rates(0, 1, 0, 1))))
    assert colors(client, 2, 2, index=1) == [GREEN, RED]
    client.write((MODIFY, meter_entry(PACKETS, 1)))
    assert colors(client, 2, 3, index=1) == [GREEN] * 3
    assert client.read(meter_entry(BYTES, 1)) == [meter_entry(BYTES, 1, rates(0, 50, 0, 70))]
    everything = client.read(meter_entry(BYTES, None))
    assert [m.index.index for m in everything] == [0, 1, 2, 3]
    assert [m.HasField("config") for m in everything] == [False, True, False, False]


def test_a_meter_that_is_not_there_says_nothing(start_ours: Start) -> None:
    client = start_ours("meters")
    assert exchange(client, frame(index=4))[2:4] == b"\t\t"


def test_direct_meters(start: Start) -> None:
    client = start("meters")
    slow = rates(0, 1, 0, 2)
    client.write((INSERT, measured(meter_config=slow)), (INSERT, measured(2)))
    assert colors(client, 4, 3, x=1) == [GREEN, YELLOW, RED]
    assert colors(client, 4, 3, x=2) == [GREEN] * 3
    assert colors(client, 4, 1, x=3) == [UNSET]
    key = BUILD.entry(MEASURED, [exact(1, 2)])
    client.write((MODIFY, p4rt.DirectMeterEntry(table_entry=key, config=slow)))
    assert colors(client, 4, 3, x=2) == [GREEN, YELLOW, RED]
    assert client.read(p4rt.DirectMeterEntry(table_entry=key)) == [
        p4rt.DirectMeterEntry(table_entry=key, config=slow)
    ]
    client.write((MODIFY, p4rt.DirectMeterEntry(table_entry=key)))
    assert colors(client, 4, 3, x=2) == [GREEN] * 3


def test_direct_meters_of_bytes(start: Start) -> None:
    client = start("meters")
    entry = BUILD.entry(WEIGHED, [ternary(1, 1, 1)], ("I.weigh",), priority=3)
    entry.meter_config.MergeFrom(p4rt.MeterConfig(**rates(0, 50, 0, 70)))
    client.write((INSERT, entry))
    assert colors(client, 5, 4, x=1) == [GREEN, GREEN, YELLOW, RED]
    (read,) = client.read(BUILD.entry(WEIGHED, meter_config={}))
    assert read == entry


def test_table_entries_carry_their_meters(start_ours: Start) -> None:
    client = start_ours("meters")
    slow = rates(0, 1, 0, 2)
    client.write((INSERT, measured(meter_config=slow)), (INSERT, measured(2)))
    asked = BUILD.entry(MEASURED, meter_config={})
    assert client.read(asked) == [measured(meter_config=slow), measured(2)]
    assert client.read(BUILD.entry(MEASURED)) == [measured(), measured(2)]
    client.write((MODIFY, measured()))  # unset, so back to green
    assert client.read(asked) == [measured(), measured(2)]
    everything = p4rt.DirectMeterEntry(table_entry={})
    keys = [BUILD.entry(MEASURED, [exact(1, x)]) for x in (1, 2)]
    assert [m.table_entry for m in client.read(everything)] == keys


def test_all_cells_at_once(start_ours: Start) -> None:
    client = start_ours("meters")
    client.write((MODIFY, meter_entry(PACKETS, None, rates(5, 1, 6, 2))))
    assert client.read(p4rt.MeterEntry()) == [
        *(meter_entry(PACKETS, i, rates(5, 1, 6, 2)) for i in range(4)),
        *(meter_entry(BYTES, i) for i in range(4)),
    ]


KEY = BUILD.entry(MEASURED, [exact(1, 9)])


@pytest.mark.parametrize(
    ("update", "message", "code", "said"),
    [
        (INSERT, meter_entry(PACKETS, 1), "INVALID_ARGUMENT", "can only be MODIFYed"),
        (DELETE, meter_entry(PACKETS, 1), "INVALID_ARGUMENT", "can only be MODIFYed"),
        (MODIFY, meter_entry(PACKETS, 4), "OUT_OF_RANGE", "not within 0 to 3"),
        (MODIFY, meter_entry(PACKETS, -1), "INVALID_ARGUMENT", "is negative"),
        (MODIFY, meter_entry(PACKETS, 1, rates(2, 1, 1, 1)), "INVALID_ARGUMENT", "above its pir"),
        (MODIFY, meter_entry(PACKETS, 1, rates(0, -1, 1, 1)), "INVALID_ARGUMENT", "cburst"),
        (MODIFY, meter_entry(PACKETS, 1, {"eburst": 1}), "INVALID_ARGUMENT", "eburst"),
        (
            MODIFY,
            p4rt.MeterEntry(meter_id=PACKETS, counter_data={}),
            "UNIMPLEMENTED",
            "no counters",
        ),
        (
            MODIFY,
            p4rt.DirectMeterEntry(table_entry=KEY, config=rates(1, 1, 1, 1)),
            "NOT_FOUND",
            "has no entry",
        ),
        (
            INSERT,
            p4rt.DirectMeterEntry(table_entry=KEY),
            "INVALID_ARGUMENT",
            "can only be MODIFYed",
        ),
        (MODIFY, p4rt.DirectMeterEntry(), "INVALID_ARGUMENT", "must give the table_entry"),
        (INSERT, measured(meter_config=rates(2, 1, 1, 1)), "INVALID_ARGUMENT", "above its pir"),
        (INSERT, measured(meter_counter_data={}), "UNIMPLEMENTED", "no counters"),
        (
            MODIFY,
            BUILD.entry(MEASURED, action=("NoAction",), is_default_action=True, meter_config={}),
            "UNIMPLEMENTED",
            "default entries",
        ),
    ],
)
def test_refused(start_ours: Start, update: int, message: Any, code: str, said: str) -> None:
    client = start_ours("meters")
    got, text = client.refused(update, message)
    assert (got, said in text) == (code, True), (got, text)
    assert not any(m.HasField("config") for m in client.read(p4rt.MeterEntry()))
    assert client.read(BUILD.entry(MEASURED)) == []


@pytest.mark.parametrize("table", [MEASURED, ""], ids=["its table", "all tables"])
def test_no_read_asks_for_the_meter_of_a_default_entry(start_ours: Start, table: str) -> None:
    client = start_ours("meters")
    key = BUILD.entry(table) if table else p4rt.TableEntry()
    key.is_default_action = True
    code, text = client.read_refused(p4rt.DirectMeterEntry(table_entry=key))
    assert (code, text.startswith("default entries")) == ("UNIMPLEMENTED", True), text
