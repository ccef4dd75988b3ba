# SPDX-License-Identifier: Apache-2.0
"""Parser value sets (programs/value_sets.p4), in the pipeline and by P4Runtime."""

from __future__ import annotations

from typing import Any

import pytest
from p4.v1 import p4runtime_pb2 as p4rt
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.value_sets import ValueSetFull
from p4rt_client import DELETE, INSERT, MODIFY, Client, config, exact, load_p4info, ternary
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

pytest_plugins = ("p4rt_fixtures",)

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
    with pytest.raises(ValueSetFull, match="room for 2, not 3"):
        pairs.replace([(1, 1), (2, 2), (3, 3)])
    for bad in ((1,), (1, 16), (-1, 0)):
        with pytest.raises(ValueError, match=r"P\.pairs"):
            pairs.replace([bad])
    assert pairs.keys() == [(1, 1)]


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
        (MODIFY, entry(1), "INVALID_ARGUMENT", "is not a value set"),
        (MODIFY, entry(SINGLE, ()), "INVALID_ARGUMENT", "each of its fields once"),
        (MODIFY, entry(PAIRS, (exact(1, 1),)), "INVALID_ARGUMENT", "each of its fields once"),
        (MODIFY, entry(SINGLE, (ternary(1, 1, 1),)), "INVALID_ARGUMENT", "gives ternary"),
        (MODIFY, entry(SINGLE, (exact(1, 256),)), "INVALID_ARGUMENT", "takes 9 bits"),
        (MODIFY, entry(SINGLE, (exact(1, 1),), (exact(1, 1),)), "INVALID_ARGUMENT", "than once"),
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
