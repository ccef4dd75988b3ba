# SPDX-License-Identifier: Apache-2.0
"""Loops in actions, and numbers below zero in entries (programs/loops.p4).

What BMv2 does with them too is in test_pipeline_bmv2.py.
"""

from __future__ import annotations

import struct

import pytest
from p4reduce_switch import messages
from p4reduce_switch.program.limits import MAX_ITERATIONS
from p4reduce_switch.state.tables import Table
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

REPORT = struct.Struct(">IHibB9s")
SUM, PRODUCT, LEAVE, REGISTERS, ENDLESS, EARLY, NOTHING = range(7)


def command(kind: int, count: int, step: int = 0, x: int = -128, y: int = -1) -> bytes:
    return struct.pack(">BBbhB", kind, count, x, y, step)


def run(frame: bytes) -> tuple[int, int]:
    """Sum and turns, less what egress counts: nothing, where x is -128."""
    ((port, out),) = load("loops").process(1, frame)
    assert port == 3
    total, turns, *_ = REPORT.unpack_from(out)
    return total, turns


def test_a_loop() -> None:
    assert run(command(SUM, 0)) == (0, 0)
    assert run(command(SUM, 9)) == (45, 0)
    assert run(command(SUM, 254)) == (254 * 255 // 2, 0)


def test_loops_within_each_other() -> None:
    even = odd = 0
    for i in range(12):
        for j in range(12):
            if j == i + 3:
                break
            even += (i + j) % 2 == 0
            odd += (i + j) % 2
    assert run(command(PRODUCT, 12)) == (odd, even)


def test_return_and_exit_within_a_loop() -> None:
    assert run(command(LEAVE, 4)) == (8, 3)
    assert run(command(LEAVE, 40)) == (10, 5)
    # An exit leaves out the tables that come behind.
    ((_, out),) = load("loops").process(1, command(LEAVE, 40, step=9))
    total, turns, wide, *_ = REPORT.unpack_from(out)
    assert (total, turns, wide) == (6, 3, 0)


def test_ways_that_join_where_no_conditional_ends() -> None:
    for step, total in ((1, 1), (2, 11), (4, 1111)):
        assert run(command(EARLY, 9, step))[0] == total
    assert run(command(EARLY, 10, 1))[0] == 1000


def test_an_endless_loop_ends_with_its_packet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Said at a slow rate, whatever other tests have said before.
    monkeypatch.setattr(
        messages, "warnings", messages.RateLimitedLog(messages.log, clock=lambda: 0.0)
    )
    pipeline = load("loops")
    assert pipeline.process(1, command(ENDLESS, 5)) == []
    assert pipeline.process(1, command(ENDLESS, 5)) == []
    assert pipeline.stats.dropped_loop == 2
    (said,) = caplog.messages
    assert "a loop at loops.p4:" in said
    assert str(MAX_ITERATIONS) in said
    # As many turns as a counter of 16 bits has are no harm.
    ((_, out),) = pipeline.process(1, command(ENDLESS, 255, 1))
    assert REPORT.unpack_from(out)[1] == 255
    assert pipeline.stats.dropped_loop == 2


@pytest.mark.parametrize(
    ("step", "small", "wide", "seen", "huge"),
    [
        (1, -1, -900 + 1, 2 | 4 | 8, -5),
        (2, -128, 3 * 32767 + 128, 2, (1 << 71) - 1),
        (3, 127, 3 * -32768 - 127, 4 | 8, -1 << 71),
        (0, -7, -24 + 7, 2 | 4 | 8, -9),  # the default
    ],
)
def test_arguments_below_zero(step: int, small: int, wide: int, seen: int, huge: int) -> None:
    ((_, out),) = load("loops").process(1, command(NOTHING, 0, step, x=-100, y=-2))
    found = REPORT.unpack_from(out)
    in_range = 0  # -100 and -2 are in none of the ranges
    assert found[2:5] == (wide, small + in_range, seen | 0x80)
    assert int.from_bytes(found[5], "big", signed=True) == huge


def test_the_bits_of_arguments_below_zero_are_others_in_an_entry() -> None:
    """P4Runtime has no sign: a controller's entry gives what the same bits are without one."""
    pipeline = load("loops")
    table: Table = pipeline.tables["I.signs"]
    table.set_default("I.signed_", (0xFF, 0xFFFF, 1))
    ((_, out),) = pipeline.process(1, command(NOTHING, 0, 0))
    _, _, wide, small, seen, _ = REPORT.unpack_from(out)
    assert (wide, small, seen & 2) == (3 * 0xFFFF - 0xFF, -1, 0)


def test_ranges_of_signed_keys_are_by_bits() -> None:
    def small(x: int, y: int) -> int:
        ((_, out),) = load("loops").process(1, command(NOTHING, 0, 0, x, y))
        found: int = REPORT.unpack_from(out)[3]
        return found

    default = -7
    assert small(1, 1000) == default - 1
    assert small(1, 1001) == default - 2
    assert small(124, -1) == default - 2
    assert small(-1, -1) == default
    assert small(-1, 5) == default + 3
