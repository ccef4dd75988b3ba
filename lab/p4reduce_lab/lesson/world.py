# SPDX-License-Identifier: Apache-2.0
"""Ranks, a switch, and the frames between them, which wait until the reader lets them go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from p4reduce.wire import format as wire
from p4reduce_controller.fabric.compiled_program import compiled_files
from p4reduce_controller.fabric.layout import lay_out, own_addresses
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.jobs.job import REPLICAS_A_CHILD, Attachment, Job, JobMember, MemberState
from p4reduce_controller.jobs.job import Share as JobShare
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.topology.given import CPU_PORT
from p4reduce_controller.topology.switches import ONLY, only_switch
from p4reduce_controller.values.mac_ip import format_ip, format_mac, parse_ip, parse_mac
from p4reduce_switch.debug.debugger import Stop

from p4reduce_lab.errors import LabError
from p4reduce_lab.lesson.ranks import Array, LessonRank
from p4reduce_lab.lesson.traced import FrameRun, Paused, SourceLine, TracedSwitch

JOB = 7
VERSIONS = 2  # copies of a slot: even rounds use one, odd ones the other
_SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
# Registers of a slot's copy, in the order in which they are shown.
REGISTERS = (
    "jobs",
    "rounds",
    "missing_ranks",
    "blocks",
    "next_blocks",
    "formats",
    "payloads",
    "all_flags",
    "sums0",
)


class NoSuchFrameError(LabError):
    """The frame or rank does not exist."""


class HeldError(LabError):
    """A frame is held in the switch, or none is and one must be."""


@dataclass(frozen=True)
class HeldFrame:
    """A frame in flight.

    Attributes:
        number: by which people name it.
        rank: whose link it is on.
        up: whether it goes to the switch.
        data: its bytes.
        note: "again" if it is a copy of another frame, "forged" if nobody sent it.
    """

    number: int
    rank: int
    up: bool
    data: bytes
    note: str = ""


@dataclass(frozen=True)
class FrameStep:
    """The effects of a frame.

    Attributes:
        frame: which.
        outcome: what the switch counted it as; None at a rank.
        lines: the P4 lines it ran through; none at a rank.
        before, after: the slot's registers, both copies of it; empty at a rank.
        sent: frames that are on their way since.
        state: of the rank that took it, or "".
        stop: the breakpoint at which the switch holds it; None: it has passed.
    """

    frame: HeldFrame
    outcome: FrameOutcome | None = None
    lines: list[SourceLine] = field(default_factory=list)
    before: list[dict[str, int]] = field(default_factory=list)
    after: list[dict[str, int]] = field(default_factory=list)
    sent: list[HeldFrame] = field(default_factory=list)
    state: str = ""
    stop: Stop | None = None


@dataclass(frozen=True)
class _InSwitch:
    """A frame that the switch has, and what was there before it."""

    frame: HeldFrame
    slot: int
    before: list[dict[str, int]]
    counted: list[int]


class LessonWorld:
    """A job of a few ranks on one switch.

    Args:
        inputs: what each rank sums in its first all-reduce; arrays of one shape and dtype.
        slots: how many the job has.
    """

    def __init__(self, inputs: Sequence[Array], slots: int = 1) -> None:
        self.slots = slots
        size = len(inputs)
        job = _job(size, slots)
        topology = only_switch(parse_ip(_SWITCH.ip), parse_mac(_SWITCH.mac), ())
        layout = lay_out(job, topology, plan(job, topology))[ONLY]
        own = own_addresses(parse_ip(_SWITCH.ip), parse_mac(_SWITCH.mac))
        self.switch = TracedSwitch(
            compiled_files()[0].read_bytes(),
            CPU_PORT,
            [*own, *(entity for stage in layout.stages for entity in stage)],
        )
        self.ranks = [
            LessonRank(rank, size, JOB, slots, _endpoint(rank), _SWITCH) for rank in range(size)
        ]
        self.flying: list[HeldFrame] = []
        self._sent = 0
        self._inside: _InSwitch | None = None
        for rank, array in zip(self.ranks, inputs, strict=True):
            rank.allreduce(array)
            self._take(rank)

    # -- What people do --------------------------------------------------------------------------

    def let(self, number: int) -> FrameStep:
        """Deliver a frame. Raises NoSuchFrameError, HeldError."""
        held = self._find(number)
        if self._inside is not None:
            raise HeldError(
                f"the switch holds frame #{self._inside.frame.number}: step or continue first"
            )
        self.flying.remove(held)
        if not held.up:
            rank = self.ranks[held.rank]
            rank.receive(held.data)
            return FrameStep(held, sent=self._take(rank), state=rank.state)
        slot = header(held.data)["slot"]
        counted = list(self.switch.pipeline.counters["outcomes"].packets)
        self._inside = _InSwitch(held, slot, self.registers(slot), counted)
        return self._came(self.switch.process(held.rank + 1, held.data))

    def go_on(self, *, steps: bool) -> FrameStep:
        """Let the held frame continue by one point, or to the next breakpoint.

        Raises HeldError: it holds none.
        """
        if self._inside is None:
            raise HeldError("the switch holds no frame: set a breakpoint, and let a frame go")
        return self._came(self.switch.go_on(steps=steps))

    def _came(self, found: FrameRun | Paused) -> FrameStep:
        inside = self._inside
        assert inside is not None
        after = self.registers(inside.slot)
        if isinstance(found, Paused):
            return FrameStep(inside.frame, None, found.lines, inside.before, after, stop=found.stop)
        self._inside = None
        counted = zip(
            self.switch.pipeline.counters["outcomes"].packets, inside.counted, strict=True
        )
        outcome = next(FrameOutcome(at) for at, (now, was) in enumerate(counted) if now != was)
        sent = [self._send(port - 1, False, data) for port, data in found.out]
        return FrameStep(inside.frame, outcome, found.lines, inside.before, after, sent)

    def drop(self, number: int) -> HeldFrame:
        """Lose a frame."""
        held = self._find(number)
        self.flying.remove(held)
        return held

    def duplicate(self, number: int) -> HeldFrame:
        """Deliver a frame twice; return the copy."""
        held = self._find(number)
        return self._send(held.rank, held.up, held.data, "again")

    def delay(self, number: int) -> HeldFrame:
        """Move a frame behind all others."""
        held = self._find(number)
        self.flying.remove(held)
        self.flying.append(held)
        return held

    def repeat(self, rank: int) -> list[HeldFrame]:
        """Let a rank's timers run out, so it repeats unanswered frames."""
        self._rank(rank).repeat()
        return self._take(self.ranks[rank])

    def forge(self, number: int, **fields: int) -> HeldFrame:
        """Send a copy of a frame with other fields in its header.

        Raises:
            NoSuchFrameError: no frame, or no field, is called so.
        """
        held = self._find(number)
        try:
            changed = wire.header_bytes(**{**header(held.data), **fields})
        except ValueError as error:
            raise NoSuchFrameError(f"{error}; `show {number}` lists the fields") from None
        data = held.data[: wire.AGG_OFFSET] + changed + held.data[wire.PAYLOAD_OFFSET :]
        return self._send(held.rank, held.up, data, "forged")

    def kill(self, rank: int) -> LessonRank:
        """End a rank's process."""
        killed = self._rank(rank)
        killed.alive = False
        return killed

    def close(self) -> None:
        """Release the held frame, because nobody continues it."""
        self.switch.close()

    # -- What there is to see ----------------------------------------------------------------------

    def registers(self, slot: int) -> list[dict[str, int]]:
        """Return the registers of both copies of a slot; none of one that the switch has not."""
        found = self.switch.pipeline.registers
        if (slot + 1) * VERSIONS > found[REGISTERS[0]].size:
            return []
        return [
            {name: found[name].cells[slot * VERSIONS + copy] for name in REGISTERS}
            for copy in range(VERSIONS)
        ]

    @property
    def position(self) -> tuple[object, ...]:
        """Return a value that changes with every event: frames in flight, and live ranks."""
        return (*(held.number for held in self.flying), *(rank.alive for rank in self.ranks))

    # -- Within ------------------------------------------------------------------------------------

    def _find(self, number: int) -> HeldFrame:
        for held in self.flying:
            if held.number == number:
                return held
        there = ", ".join(f"#{held.number}" for held in self.flying) or "none"
        raise NoSuchFrameError(f"there is no frame #{number} on its way; there are: {there}")

    def _rank(self, rank: int) -> LessonRank:
        if not 0 <= rank < len(self.ranks):
            raise NoSuchFrameError(f"there is no rank {rank}; ranks are 0 to {len(self.ranks) - 1}")
        return self.ranks[rank]

    def _take(self, rank: LessonRank) -> list[HeldFrame]:
        sent = [self._send(rank.number, True, data) for data in rank.take()]
        if sent:
            latest = header(sent[-1].data)
            block = latest["block"]
            what = "" if block == wire.NO_BLOCK else f" (block {block})"
            rank.waits_for = f"round {latest['round']}{what}"
        return sent

    def _send(self, rank: int, up: bool, data: bytes, note: str = "") -> HeldFrame:
        self._sent += 1
        held = HeldFrame(self._sent, rank, up, data, note)
        self.flying.append(held)
        return held


def header(data: bytes) -> dict[str, int]:
    """Return the fields of a frame's aggregation header."""
    rest = int.from_bytes(data[wire.AGG_OFFSET : wire.PAYLOAD_OFFSET], "big")
    fields = {}
    for one in reversed(wire.HEADER_FIELDS):
        fields[one.name] = rest & (1 << one.bits) - 1
        rest >>= one.bits
    return fields


def _endpoint(rank: int) -> wire.Endpoint:
    return wire.Endpoint(
        format_mac(0x02_00_00_00_01_00 + rank), format_ip(0x0A4D0001 + rank), 49152
    )


def _job(size: int, slots: int) -> Job:
    """The controller's record of the job, as if its ranks had joined."""
    job = Job("lesson", JOB, size, slots, created=0.0, by_operator=False, secret=b"")
    ids = list(range(1, 2 + REPLICAS_A_CHILD * size))
    job.shares[ONLY] = JobShare(range(slots), [2, 3], ids)
    for rank in range(size):
        at = _endpoint(rank)
        attachment = Attachment(rank + 1, parse_mac(at.mac), parse_ip(at.ip), at.udp_port, ONLY)
        member = JobMember(rank, 0, "", 0, rank, 0.0, state=MemberState.ATTACHED)
        job.members[rank] = replace(member, attachment=attachment)
    return job
