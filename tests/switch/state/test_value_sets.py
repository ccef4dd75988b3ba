# SPDX-License-Identifier: Apache-2.0
"""Parser value sets (programs/value_set*.p4), in the pipeline and by P4Runtime."""

from __future__ import annotations

import random
from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.errors import FullError
from p4reduce_switch.state.tables import MatchKey, MatchKind
from p4rt_client import (
    DELETE,
    INSERT,
    MODIFY,
    Client,
    config,
    exact,
    load_p4info,
    lpm,
    optional,
    range_,
    ternary,
)
from pipeline_programs import load
from two_targets import Start, exchange

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("p4rt_fixtures", "two_targets")

SINGLE, PAIRS = (v.preamble.id for v in load_p4info("value_sets").value_sets)


def found(pipeline: Pipeline, x: int, y: int = 0, z: int = 0) -> int:
    sent = bytes((x,)) + (y << 4 | z).to_bytes(2, "big") + b"\xff\xfftail"
    ((_, out),) = pipeline.process(0, sent)
    assert out[:3] + out[5:] == sent[:3] + sent[5:]
    return int.from_bytes(out[3:5], "big")


def test_select() -> None:
    pipeline = load("value_sets")
    assert found(pipeline, 1, 2, 3) == 0
    pipeline.value_sets["P.single"].replace([(1,), (7,)])
    pipeline.value_sets["P.pairs"].replace([(2, 3)])
    assert [found(pipeline, x) for x in (0, 1, 7)] == [0, 1, 1]
    assert [found(pipeline, 0, 2, z) for z in (3, 2)] == [2, 0]
    assert found(pipeline, 0, 3, 2) == 0
    pipeline.value_sets["P.single"].replace([])
    assert found(pipeline, 1) == 0


def test_limits() -> None:
    pairs = load("value_sets").value_sets["P.pairs"]
    pairs.replace([(1, 1)])
    with pytest.raises(FullError, match="room for 2 members, not 3"):
        pairs.replace([(1, 1), (2, 2), (3, 3)])
    for bad in ((1,), (1, 16), (-1, 0)):
        with pytest.raises(ValueError, match=r"P\.pairs"):
            pairs.replace([bad])
    assert pairs.members == ((1, 1),)


def entry(number: int, *members: tuple[Any, ...]) -> Any:
    return p4rt.ValueSetEntry(
        value_set_id=number, members=[p4rt.ValueSetMember(match=fields) for fields in members]
    )


@pytest.fixture
def client(primary: Client) -> Client:
    primary.set_config(config("value_sets"))
    return primary


def test_write_and_read(client: Client) -> None:
    single = entry(SINGLE, (exact(1, 1),), (exact(1, 9),))
    pairs = entry(PAIRS, (exact(1, 0xABC), exact(2, 4)))
    client.write((MODIFY, single), (MODIFY, pairs))
    assert client.read(entry(SINGLE)) == [single]
    assert client.read(entry(0)) == [single, pairs]
    client.write((MODIFY, entry(SINGLE)))
    assert client.read(entry(0)) == [entry(SINGLE), pairs]


@pytest.mark.parametrize(
    ("kind", "message", "code", "said"),
    [
        (INSERT, entry(SINGLE), "INVALID_ARGUMENT", "with MODIFY"),
        (DELETE, entry(SINGLE), "INVALID_ARGUMENT", "with MODIFY"),
        (MODIFY, entry(1), "INVALID_ARGUMENT", "no value set with id 0x1"),
        (MODIFY, entry(SINGLE, ()), "INVALID_ARGUMENT", "(id 1) of value set 'P.single' is missi"),
        (MODIFY, entry(PAIRS, (exact(1, 1),)), "INVALID_ARGUMENT", "'z' (id 2) of value set 'P.p"),
        (MODIFY, entry(PAIRS, (exact(1, 1), exact(1, 1))), "INVALID_ARGUMENT", "more than once"),
        (MODIFY, entry(PAIRS, (exact(3, 1),)), "INVALID_ARGUMENT", "no match field with id 3"),
        (MODIFY, entry(SINGLE, (ternary(1, 1, 1),)), "INVALID_ARGUMENT", "gives ternary"),
        (MODIFY, entry(SINGLE, (exact(1, 256),)), "INVALID_ARGUMENT", "takes 9 bits"),
        (MODIFY, entry(SINGLE, (exact(1, 1),), (exact(1, 1),)), "ALREADY_EXISTS", "than once"),
        (
            MODIFY,
            entry(SINGLE, *((exact(1, n),) for n in range(5))),
            "RESOURCE_EXHAUSTED",
            "room for 4 members, not 5",
        ),
    ],
)
def test_rules(client: Client, kind: int, message: Any, code: str, said: str) -> None:
    given, text = client.refused(kind, message)
    assert given == code
    assert said in text


# -- Members that are not exact ------------------------------------------------------------------

FOUR, RANGES, MAYBE = (v.preamble.id for v in load_p4info("value_set_kinds").value_sets)
NOTHING, IN_FOUR, IN_RANGES, IN_MAYBE, CONSTANT = range(5)
NAMES = ("mask", "prefix", "same", "span")
CPU_PORT = 255


def fields(mask: int = 0, prefix: int = 0, same: int = 0, span: int = 0, wide: int = 0) -> bytes:
    """A frame of programs/value_set_kinds.p4, of which the last byte is the answer."""
    bits = mask << 16 | prefix << 13 | same << 7 | span << 2
    return bits.to_bytes(4, "big") + wide.to_bytes(10, "big") + b"\xff"


def answer(pipeline: Pipeline, **values: int) -> int:
    ((port, out),) = pipeline.process(0, fields(**values) + b"tail")
    assert port == CPU_PORT
    return out[14]


def test_kinds_by_p4runtime(primary: Client) -> None:
    primary.set_config(config("value_set_kinds"))
    four = entry(
        FOUR,
        (ternary(1, 0x1200, 0xFF00), lpm(2, 0b100, 1), exact(3, 33), range_(4, 5, 9)),
        # What is left out matches anything.
        (exact(3, 44),),
    )
    ranges = entry(RANGES, (range_(1, 1 << 70, (1 << 70) + 5),), (range_(2, 30, 31),))
    maybe = entry(MAYBE, (optional(1, 0x777),), (ternary(2, 1 << 79, 1 << 79),))
    primary.write((MODIFY, four), (MODIFY, ranges), (MODIFY, maybe))
    assert primary.read(entry(FOUR)) == [four]
    assert primary.read(entry(0)) == [four, ranges, maybe]

    def found(**values: int) -> int:
        payload = exchange(primary, fields(**values))
        assert payload[:14] == fields(**values)[:14]
        return payload[14]

    assert found(mask=0x12AB, prefix=0b111, same=33, span=5) == IN_FOUR
    assert found(mask=0x12AB, prefix=0b111, same=33, span=10) == NOTHING
    assert found(mask=0x12AB, prefix=0b011, same=33, span=5) == NOTHING
    assert found(mask=0x13AB, prefix=0b111, same=33, span=5) == NOTHING
    assert found(mask=0x12AB, prefix=0b111, same=34, span=5) == NOTHING
    assert found(mask=0xFFFF, same=44) == IN_FOUR
    assert found(mask=7, prefix=1, same=1, span=1) == CONSTANT
    assert found(wide=(1 << 70) + 5) == IN_RANGES
    assert found(wide=(1 << 70) + 6) == NOTHING
    assert found(wide=(1 << 70) - 1, span=30) == IN_RANGES
    assert found(mask=0x777) == IN_MAYBE
    assert found(mask=0x778, wide=1 << 79 | 5) == IN_MAYBE
    primary.write((MODIFY, entry(FOUR)))
    assert found(mask=0xFFFF, same=44) == NOTHING


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        (entry(FOUR, (ternary(1, 1, 1),)), "INVALID_ARGUMENT", "'same' (id 3) of value set 'P.fo"),
        (entry(FOUR, (exact(1, 1), exact(3, 1))), "INVALID_ARGUMENT", "is of kind ternary"),
        (entry(FOUR, (ternary(1, 3, 1), exact(3, 1))), "INVALID_ARGUMENT", "outside its mask"),
        (entry(FOUR, (lpm(2, 1, 1), exact(3, 1))), "INVALID_ARGUMENT", "below its prefix of 1"),
        (entry(FOUR, (range_(4, 3, 2), exact(3, 1))), "INVALID_ARGUMENT", "low must not exceed"),
        (entry(FOUR, (range_(4, 0, 31), exact(3, 1))), "INVALID_ARGUMENT", "holds every value"),
        (entry(RANGES, (), ()), "ALREADY_EXISTS", "given more than once"),
    ],
)
def test_rules_of_kinds(primary: Client, message: Any, code: str, said: str) -> None:
    primary.set_config(config("value_set_kinds"))
    given, text = primary.refused(MODIFY, message)
    assert given == code
    assert said in text


def test_random_members_against_their_definition() -> None:
    """Each member tested by itself, as P4Runtime says it."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    pipeline = load("value_set_kinds")
    kinds: tuple[MatchKind, ...] = ("ternary", "lpm", "exact", "range")
    key = [
        MatchKey(name, width, kind)
        for name, width, kind in zip(NAMES, (16, 3, 6, 5), kinds, strict=True)
    ]
    four = pipeline.value_sets["P.four"]
    four.match_by(key)
    hits = 0
    for _ in range(60):
        members = [_random_member(rng) for _ in range(rng.randrange(5))]
        four.replace(members)
        for _ in range(20):
            values = (rng.choice((0, 5, 0xFFFF)), *(rng.randrange(n) for n in (8, 3, 8)))
            inside = any(_matches(member, values) for member in members)
            found_ = answer(pipeline, **dict(zip(NAMES, values, strict=True)))
            assert found_ == (IN_FOUR if inside else NOTHING), (members, values)
            hits += inside
    assert hits > 50


def _random_member(rng: random.Random) -> Any:
    low, high = sorted(rng.randrange(8) for _ in range(2))
    mask = rng.choice((0, 1, 0xFFFF))
    return (
        (rng.getrandbits(16) & mask, mask),
        (rng.randrange(8), rng.randrange(4)),
        rng.randrange(3),
        (low, high),
    )


def _matches(member: Any, values: tuple[int, ...]) -> bool:
    (bits, mask), (prefix, length), same, (low, high) = member
    return (
        values[0] & mask == bits
        and values[1] >> (3 - length) == prefix >> (3 - length)
        and values[2] == same
        and low <= values[3] <= high
    )


def test_bmv2_takes_the_program_too(start: Start) -> None:
    """Its server cannot fill the sets; empty, they lead nowhere."""
    client = start("value_set_kinds")
    assert exchange(client, fields(mask=9)) == fields(mask=9)[:14] + bytes((NOTHING,))
    assert exchange(client, fields(7, 1, 1, 1)) == fields(7, 1, 1, 1)[:14] + bytes((CONSTANT,))
