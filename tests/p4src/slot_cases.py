# SPDX-License-Identifier: Apache-2.0
"""Every state of a slot and every frame that can meet it, and a switch that one can be put into."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry

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


@dataclass(frozen=True)
class Form:
    """How a target keeps a slot.

    Attributes:
        payload_bytes: of a frame with lanes.
        may_grow: a frame without lanes has room for the sums nevertheless, and no result is halved.
        one_asker: it keeps one rank that asks the parent, not a set of them.
        registers: what they hold, by how their names end; the others hold 0.
    """

    payload_bytes: int
    may_grow: bool
    one_asker: bool
    registers: Callable[[Slot], Mapping[str, int]]


def _in_v1model(slot: Slot) -> Mapping[str, int]:
    return {
        "jobs": slot.job,
        "rounds": slot.round,
        "missing_ranks": slot.missing,
        "tags": TAG,
        "payloads": int(slot.lanes),
        "finals": slot.final,
        "askers": slot.askers,
    }


def _in_tofino2(slot: Slot) -> Mapping[str, int]:
    return {
        "claims_low": slot.job,
        "claims_high": slot.round,
        "low_ranks.missing_ranks": slot.missing,
        "subjects_low": TAG,
        "payloads": int(slot.lanes),
        "turns_high": slot.final,
        "turns_low": 0x10000 + slot.askers.bit_length() - 1 if slot.askers else 0,
    }


V1MODEL = Form(wire.PAYLOAD_BYTES, may_grow=False, one_asker=False, registers=_in_v1model)
V1MODEL_64 = Form(256, may_grow=True, one_asker=False, registers=_in_v1model)
TOFINO2 = Form(256, may_grow=True, one_asker=True, registers=_in_tofino2)


def cases(form: Form, *, below: bool) -> Iterator[Case]:
    """All of them."""
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
    frames = [frame for frame in frames if not (frame.half and form.may_grow)]
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
            if slot.missing and (slot.final or slot.askers):
                continue
            if not (form.one_asker and slot.askers.bit_count() > 1):
                yield from (Case(frame, slot, ranks, form.may_grow) for frame in frames)


class Switch:
    """The program, with a job.

    Args:
        program: p4c's JSON.
        ranks: of the job.
        below: the switch has a parent.
        form: how the program keeps a slot.
        slots: of the job.
    """

    def __init__(
        self, program: bytes, ranks: int, *, below: bool, form: Form = V1MODEL, slots: int = 1
    ) -> None:
        everyone = 2**ranks - 1
        self.form = form
        self._pipeline = Pipeline(program)
        everybody = [Replica(number + 1, number + 1) for number in range(ranks)]
        self._pipeline.multicast.insert(FULL, everybody)
        self._pipeline.multicast.insert(UP, [Replica(PARENT_PORT, PARENT_PORT)])
        tables = self._pipeline.tables
        mac = parse_mac(SWITCH.mac)
        tables["own_address"].insert(TableEntry((parse_ip(SWITCH.ip),), 0, "is_own", (mac,)))
        for number, rank in enumerate(RANKS[:ranks]):
            grant: tuple[int, ...] = (1 << number, everyone, 0, slots, FULL, HALVES)
            action = "grant"
            if below:
                grant, action = (*grant, UP), "grant_partial"
            key = (number + 1, parse_ip(rank.ip), JOB, number)
            tables["admission"].insert(TableEntry(key, 0, action, grant))
            copy = TableEntry(
                (number + 1,), 0, "whole", (mac, parse_ip(rank.ip), rank.udp_port, number)
            )
            tables["delivery"].insert(copy)
        if below:
            key = (PARENT_PORT, parse_ip(PARENT.ip), JOB, CHILD)
            up = (mac, parse_ip(PARENT.ip), PARENT.udp_port, CHILD)
            tables["delivery"].insert(TableEntry((PARENT_PORT,), 0, "whole", up))
            tables["uplink"].insert(TableEntry(key, 0, "pass_down", (everyone, 0, slots, FULL)))

    def outcome(self, case: Case) -> FrameOutcome:
        """What counts the frame."""
        held = self.form.registers(case.slot)
        for name, register in self._pipeline.registers.items():
            found = [value for end, value in held.items() if f".{name}".endswith(f".{end}")]
            register.cells[0] = found[0] if found else 0
        frame = _bytes(case.frame, self.form.payload_bytes)
        return self.process(PARENT_PORT if case.frame.from_parent else 1, frame)[0]

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


@cache
def _bytes(frame: Frame, payload_bytes: int) -> bytes:
    fields: dict[str, Any] = {"kind": frame.kind, "flags": frame.flags, "job": JOB, "round": ROUND}
    fields["rank"] = CHILD if frame.from_parent else 0
    lanes = wire.HALF_BYTES if frame.half else payload_bytes
    if not frame.has_room or frame.kind == FrameKind.STATUS:
        lanes = 0
    sender = PARENT if frame.from_parent else RANKS[0]
    return wire.template(sender, SWITCH, Aggregation(tag=TAG, block=0, **fields), bytes(lanes))
