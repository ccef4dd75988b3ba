# SPDX-License-Identifier: Apache-2.0
"""The case tables of docs/protocol.md say what the compiled program does, in every state of a slot.

Each state is put into the registers of the embedded switch, one frame follows, and the outcome that
counts it is the one that the page's row names. The first row that matches counts.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_model.faults import compile_with
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
COMPILED = ROOT / "p4src" / "compiled" / "p4reduce.json"

SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
RANKS = [wire.Endpoint(f"02:00:00:00:01:{r:02x}", f"10.77.0.{r + 1}", 49152 + r) for r in range(3)]
PARENT = wire.Endpoint("02:00:00:00:02:01", "10.77.1.1", wire.AGGREGATION_PORT)
PARENT_PORT, CHILD = 9, 5
JOB, OTHER_JOB, ROUND, TAG = 0x77, 0x78, 6, 0x7461_6721
FULL, HALVES, UP = 2, 3, 4  # multicast groups
FINAL_NOT, FINAL_EMPTY, FINAL_LANES = 0, 1, 3  # p4src/common/types.p4


@dataclass(frozen=True)
class Frame:
    """A frame about round `ROUND` of rank 0, or of the parent."""

    kind: FrameKind
    flags: Flag
    from_parent: bool

    @property
    def answers(self) -> bool:
        return self.kind != FrameKind.CONTRIBUTE

    @property
    def has_room(self) -> bool:
        return bool(self.flags & (Flag.PAYLOAD | Flag.PADDED))

    @property
    def half(self) -> bool:
        return self.kind == FrameKind.RESULT and bool(
            self.flags & (Flag.FIRST_HALF | Flag.SECOND_HALF)
        )

    @property
    def asks_for_all(self) -> bool:
        return not self.answers and bool(self.flags & (Flag.TELL_ALL | Flag.FOR_ONE))


@dataclass(frozen=True)
class Slot:
    """What a slot holds before a frame; `lanes`: some rank's lanes are there."""

    job: int
    round: int
    missing: int
    lanes: bool
    final: int
    askers: int


@dataclass(frozen=True)
class Case:
    """A frame that meets a slot on the root, or on a switch below it.

    Attributes:
        ranks: of the job.
        may_grow: a frame without lanes has room for the sums nevertheless.
    """

    frame: Frame
    slot: Slot
    ranks: int
    may_grow: bool

    @property
    def job(self) -> str:
        return "same" if self.slot.job == JOB else "other"

    @property
    def round(self) -> str:
        ahead = ROUND - self.slot.round
        return "same" if not ahead else "newer" if ahead > 0 else "older"

    @property
    def current(self) -> bool:
        return self.job == "same" and self.round == "same"

    @property
    def heard(self) -> bool:
        return self.current and not self.slot.missing & 1

    @property
    def complete(self) -> bool:
        """With this frame."""
        if self.frame.answers:
            return self.current and not self.slot.missing
        return not (self.slot.missing if self.current else 2**self.ranks - 1) & ~1

    @property
    def last(self) -> bool:
        late = self.job == "same" and self.round == "older"
        return not self.frame.answers and not late and not self.heard and self.complete

    @property
    def repeats(self) -> bool:
        return not self.frame.answers and self.heard

    @property
    def lanes(self) -> bool:
        """Whether there are sums."""
        lanes = self.slot.final == FINAL_LANES if self.slot.final else self.slot.lanes
        return self.current and lanes

    @property
    def no_room(self) -> bool:
        return self.lanes and not self.frame.has_room and not self.may_grow

    @property
    def turn(self) -> bool:
        return not self.slot.askers or bool(self.slot.askers & 1) or self.no_room


# What the words of the page's second table mean.
FRAMES: Mapping[str, Callable[[Case], bool]] = {
    "the last contribution": lambda case: case.last,
    "a repetition": lambda case: case.repeats,
    "a repetition with TELL_ALL or FOR_ONE": lambda case: case.repeats and case.frame.asks_for_all,
    "a repetition whose turn it is": lambda case: case.repeats and case.turn,
    "another repetition": lambda case: case.repeats,
    "the parent's RESULT": lambda case: case.frame.kind == FrameKind.RESULT and not case.frame.half,
    "half of the parent's RESULT": lambda case: case.frame.half,
    "the parent's STATUS": lambda case: (
        case.frame.kind == FrameKind.STATUS and not case.frame.flags & Flag.FOR_ONE
    ),
    "the parent's STATUS with FOR_ONE": lambda case: (
        case.frame.kind == FrameKind.STATUS and bool(case.frame.flags & Flag.FOR_ONE)
    ),
    "any of these four": lambda case: case.frame.answers,
}
ROUNDS: Mapping[str, Callable[[Case], bool]] = {
    "": lambda _: True,
    "incomplete": lambda case: not case.complete,
    "complete, not final": lambda case: case.complete and not case.slot.final,
    "final": lambda case: case.complete and bool(case.slot.final),
    "incomplete, or another round or job": lambda case: not case.complete,
}


@cache
def table(first: str) -> list[list[str]]:
    """The rows of the page's table whose first columns have these heads."""
    lines = iter(PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows][1:]
    raise AssertionError(f"{PAGE.name} has no table about {first!r}")


def on_the_page(case: Case, *, below: bool) -> FrameOutcome:
    """The outcome that the page names."""
    outcome = with_room(case, below=below)
    for other, without, _ in table("with room | without room"):
        if case.no_room and not case.frame.answers and outcome == other:
            return FrameOutcome[without]
    return FrameOutcome[outcome]


def with_room(case: Case, *, below: bool) -> str:
    *from_parent, from_elsewhere = table("frame | the round is")
    if case.frame.answers and not (below and case.frame.from_parent):
        return from_elsewhere[-1]
    for frame, about, _, outcome in from_parent if below else ():
        if FRAMES[frame](case) and ROUNDS[about](case):
            return outcome
    words = {True: "yes", False: "no"}
    own = (case.job, case.round, words[case.heard], words[case.complete])
    for *cells, _, _, outcome in table("job | round"):
        if all(cell in ("–", word) for cell, word in zip(cells, own, strict=True)):
            return outcome
    raise AssertionError(f"no row of {PAGE.name} is about {case}")


def cases(*, below: bool, may_grow: bool = False) -> Iterator[Case]:
    """All of them; where frames may grow, no result comes in halves."""
    contribute, result, status = FrameKind.CONTRIBUTE, FrameKind.RESULT, FrameKind.STATUS
    some = [Flag(0), Flag.PAYLOAD, Flag.PADDED]
    frames = [
        Frame(contribute, lanes | flags, from_parent=False)
        for lanes in some
        for flags in (Flag(0), Flag.TELL_ALL, Flag.FOR_ONE)
    ]
    answers = [
        (result, Flag(0)),
        (result, Flag.PAYLOAD),
        (result, Flag.PAYLOAD | Flag.FIRST_HALF),
        (result, Flag.PAYLOAD | Flag.SECOND_HALF),
        (status, Flag(0)),
        (status, Flag.PADDED),
        (status, Flag.FOR_ONE),
    ]
    frames += [Frame(*answer, from_parent=where) for answer in answers for where in (True, False)]
    frames = [frame for frame in frames if not (frame.half and may_grow)]
    finals = (FINAL_NOT, FINAL_EMPTY, FINAL_LANES) if below else (FINAL_NOT,)
    for ranks in (1, 2):
        everyone = range(2**ranks)
        for slot in itertools.starmap(
            Slot,
            itertools.product(
                (JOB, OTHER_JOB),
                (ROUND - 2, ROUND, ROUND + 2),
                everyone,
                (False, True),
                finals,
                everyone,
            ),
        ):
            # A slot that lacks ranks has no answer yet, and nobody asks for it.
            if not slot.missing or not (slot.final or slot.askers):
                yield from (Case(frame, slot, ranks, may_grow) for frame in frames)


class Switch:
    """The program, with a job.

    Args:
        program: p4c's JSON.
        ranks: of the job.
        below: the switch has a parent.
    """

    def __init__(self, program: bytes, ranks: int, *, below: bool) -> None:
        everyone = 2**ranks - 1
        self._pipeline = Pipeline(program)
        everybody = [Replica(number + 1, number + 1) for number in range(ranks)]
        self._pipeline.multicast.insert(FULL, everybody)
        self._pipeline.multicast.insert(UP, [Replica(PARENT_PORT, PARENT_PORT)])
        tables = self._pipeline.tables
        mac = int(SWITCH.mac.replace(":", ""), 16)
        tables["own_address"].insert(TableEntry((_ip(SWITCH),), 0, "is_own", (mac,)))
        for number, rank in enumerate(RANKS[:ranks]):
            grant: tuple[int, ...] = (1 << number, everyone, 0, 1, FULL, HALVES)
            action = "grant"
            if below:
                grant, action = (*grant, UP), "grant_partial"
            key = (number + 1, _ip(rank), JOB, number)
            tables["admission"].insert(TableEntry(key, 0, action, grant))
            copy = TableEntry((number + 1,), 0, "whole", (mac, _ip(rank), rank.udp_port, number))
            tables["delivery"].insert(copy)
        if below:
            key = (PARENT_PORT, _ip(PARENT), JOB, CHILD)
            up = (mac, _ip(PARENT), PARENT.udp_port, CHILD)
            tables["delivery"].insert(TableEntry((PARENT_PORT,), 0, "whole", up))
            tables["uplink"].insert(TableEntry(key, 0, "pass_down", (everyone, 0, 1, FULL)))

    def outcome(self, case: Case) -> FrameOutcome:
        """What counts the frame."""
        slot = case.slot
        held = {
            "jobs": slot.job,
            "rounds": slot.round,
            "missing_ranks": slot.missing,
            "tags": TAG,
            "payloads": int(slot.lanes),
            "finals": slot.final,
            "askers": slot.askers,
        }
        for name, register in self._pipeline.registers.items():
            register.cells[0] = held.get(name.rpartition(".")[2], 0)
        return self.process(PARENT_PORT if case.frame.from_parent else 1, _bytes(case.frame))[0]

    def process(self, port: int, frame: bytes) -> tuple[FrameOutcome, list[tuple[int, bytes]]]:
        """What counts a frame, and what leaves then."""
        counter = self._pipeline.counters["outcomes"].packets
        before = list(counter)
        out = self._pipeline.process(port, frame)
        (found,) = (
            number
            for number, (old, new) in enumerate(zip(before, counter, strict=True))
            if new > old
        )
        return FrameOutcome(found), out


def _ip(at: wire.Endpoint) -> int:
    return int.from_bytes(bytes(map(int, at.ip.split("."))), "big")


@cache
def _bytes(frame: Frame) -> bytes:
    fields: dict[str, Any] = {"kind": frame.kind, "flags": frame.flags, "job": JOB, "round": ROUND}
    fields["rank"] = CHILD if frame.from_parent else 0
    lanes = wire.HALF_BYTES if frame.half else wire.PAYLOAD_BYTES
    if not frame.has_room or frame.kind == FrameKind.STATUS:
        lanes = 0
    sender = PARENT if frame.from_parent else RANKS[0]
    return wire.template(sender, SWITCH, Aggregation(tag=TAG, block=0, **fields), bytes(lanes))


def differences(program: bytes, *, below: bool) -> str:
    """The first cases in which page and program differ."""
    switches = {ranks: Switch(program, ranks, below=below) for ranks in (1, 2)}
    found = [
        f"{case}: {outcome.name}, and the page says {expected.name}"
        for case in cases(below=below)
        if (outcome := switches[case.ranks].outcome(case))
        != (expected := on_the_page(case, below=below))
    ]
    return "\n".join(found[:5])


@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
def test_the_program_does_what_the_page_says(below: bool) -> None:
    assert not differences(COMPILED.read_bytes(), below=below)


@pytest.mark.p4c
@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("below", [False, True], ids=["root", "below"])
def test_so_does_the_table_alone(below: bool) -> None:
    """v1model decides about most frames without the table `decide`: both say the same."""
    slots = (ROOT / "p4src" / "v1model" / "slots.p4").read_text()
    (shortcut,) = re.findall(
        r"        if \([^)]*\) \{\n            decide_at_once\(\);\n        }\n", slots
    )
    program = compile_with((("v1model/slots.p4", shortcut, ""),))
    assert not differences(program, below=below)


def test_each_outcome_of_the_page_is_that_of_a_case() -> None:
    named = {
        on_the_page(case, below=below) for below in (False, True) for case in cases(below=below)
    }
    rows = [*table("job | round"), *table("frame | the round is")]
    assert {row[-1] for row in rows} | {row[1] for row in table("with room | without room")} == {
        outcome.name for outcome in named
    }
