# SPDX-License-Identifier: Apache-2.0
"""A worker, frame by frame: docs/protocol.md, "What a worker does".

It has no thread, no socket and no clock. `submit` starts a call, `receive` takes a frame, and
`tick` takes the time. Each leaves the frames to send in `outbox`. Titles in quotation marks are
sections of that page.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scapy.packet import Packet

from p4reduce.errors import (
    P4ReduceError,
)
from p4reduce.reference.frames import (
    FIRST_HALF,
    SECOND_HALF,
    WHOLE,
    contribution,
    describe,
    lanes_of,
    message_of,
    padded,
    parts_of,
    read_answer,
    readdressed,
)
from p4reduce.reference.numbers import ReferenceCall
from p4reduce.reference.timeout import Timeout
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.continuing import MESSAGE_BYTES, Messages
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.endings import late_error, left_error, overflow_error
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import class_slots
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import (
    NO_BLOCK,
    NONFINITE_EXPONENT,
    PAYLOAD_BYTES,
    Endpoint,
    Flag,
    FrameKind,
)
from p4reduce.wire.rank_sets import Level, one_switch

log = logging.getLogger("p4reduce.reference")

_ROUNDS = 1 << 32


@dataclass
class Stripe:
    """Blocks j, j + k, j + 2k, … of a call that has k stripes ("Words")."""

    call: ReferenceCall
    first: int  # j


@dataclass
class Slot:
    """What a worker knows about one slot.

    Attributes:
        number: as in frames.
        waiting: stripes of later calls.
        stripe: in progress; None: the slot is idle and waits for no result.
        round: of the contribution in flight, or of the next one if the slot is idle.
        block: summed in this round; None: the round only opens the stripe.
        exponent: agreed for it.
        announced: this rank's next block; None: it has no more.
        parts: the received parts of the result.
        frame: the contribution, to be repeated.
        heard: level and bits of the last STATUS that says who is missing.
        sent_at: when the contribution was first sent.
        due: when its timer runs out.
        tries: how often it was repeated, or the switch reported that it waits for others.
        kept: the last result as `tensors.continuing` hands it over.
        origin: rounds before those of this life of the job, modulo 2^32.
    """

    number: int
    waiting: deque[Stripe] = field(default_factory=deque)
    stripe: Stripe | None = None
    round: int = 0
    block: int | None = None
    exponent: int = 0
    announced: int | None = None
    parts: frozenset[str] = frozenset()
    frame: Packet = field(default_factory=Packet)
    heard: tuple[int, int] | None = None
    sent_at: float = 0.0
    due: float = math.inf
    tries: int = 0
    kept: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(MESSAGE_BYTES, np.uint8))
    origin: int = 0

    @property
    def is_bare(self) -> bool:
        """Whether its contribution has no room for a result with lanes ("Halves and padding")."""
        return self.block is not None and not self.frame[Aggregation].payload


class Worker:
    """One rank of a job.

    Attributes:
        outbox: the frame to send of each slot; the caller takes it out and calls `sent`.
        counts: statistics.
        round_trips, timeout: the measurements, and the timeout from them.
        broken: the error that ends all further calls, or None.
        disputed: called when the ranks disagree, to find out who called what; nothing runs
            until `fail` is called. None: the job fails at once.
        heard_switch_at: when the switch last answered anything.
        next_sequence: the number of the next call.
        name: job and rank, which all answers to it carry.

    Args:
        slots: the job's number of slots.
        job: its incarnation id.
        rank: as in MPI.
        world_size: as `rank`.
        here: addresses.
        switch: as `here`.
        urgent: how many of the last slots are for calls of class 1, 2 and so on.
        levels: the switches above this rank, its own first; None: one switch for all ranks.
    """

    def __init__(
        self,
        *,
        slots: int,
        job: int,
        rank: int,
        world_size: int,
        here: Endpoint,
        switch: Endpoint,
        urgent: Sequence[int] = (),
        levels: Sequence[Level] | None = None,
    ) -> None:
        self.slots = [Slot(number) for number in range(slots)]
        self.outbox: dict[int, Packet] = {}
        self.counts = Counts()
        self.round_trips = RoundTrips()
        self.timeout = Timeout()
        self.broken: P4ReduceError | None = None
        self.disputed: Callable[[Dispute], object] | None = None
        self.in_dispute = False
        self.heard_switch_at = -math.inf
        self.next_sequence = 0
        self.name = job, rank
        self._rank, self._world_size = rank, world_size
        self._here, self._switch = here, switch
        self._levels = tuple(levels or one_switch(world_size))
        self._classes = class_slots(slots, urgent)
        self._stripes_dealt = [0] * len(self._classes)
        self._calls: dict[int, ReferenceCall] = {}
        self._left: tuple[int, ...] = ()

    # -- Calls ("Collectives in flight", "Classes") ------------------------------------------

    def submit(self, collective: Collective) -> None:
        """Start a call behind earlier ones, in the slots that follow theirs."""
        if self._left and self.broken is None and not self.in_dispute:
            self.fail(left_error(collective, self._left))
        if self.broken is not None:
            collective.finish(self.broken)
            return
        call = self._calls[collective.sequence] = ReferenceCall(collective, self._world_size)
        self.next_sequence = collective.sequence + 1
        if self.in_dispute:
            return
        self.counts.blocks += call.count
        slots, dealt = self._classes[collective.priority], self._stripes_dealt[collective.priority]
        self._stripes_dealt[collective.priority] = dealt + collective.stripes
        for stripe in range(collective.stripes):
            slot = self.slots[slots[(dealt + stripe) % len(slots)]]
            slot.waiting.append(Stripe(call, stripe))
            if slot.stripe is None:
                self._open(slot)

    def _open(self, slot: Slot) -> None:
        """Run "Open": a round about no block, which says which one this rank has first."""
        slot.stripe = stripe = slot.waiting.popleft()
        if (trace := stripe.call.collective.trace) is not None:
            trace.open()
        slot.announced = stripe.call.next_nonzero(stripe.first)
        self._contribute(slot, block=None)

    def _contribute(self, slot: Slot, block: int | None, exponent: int = 0) -> None:
        """Take part in the slot's next round.

        "With payload if this rank has announced it, quantised with the exponent agreed; without
        payload otherwise. Announce the own next non-zero block after it."
        """
        assert slot.stripe is not None
        call, flags, lanes = slot.stripe.call, Flag(0), b""
        mine = block is not None and block == slot.announced
        if block is not None and mine:
            slot.announced = call.next_nonzero(block + call.collective.stripes)
        if exponent == NONFINITE_EXPONENT:
            flags = Flag.NONFINITE
            if block is not None and mine:
                call.withhold(block)
        elif block is not None and mine:
            flags, lanes = Flag.PAYLOAD, call.lanes(block, exponent)
            if call.is_too_large(block):
                flags |= Flag.OVERFLOW
        slot.block, slot.exponent = block, exponent
        slot.parts, slot.heard = frozenset(), None
        slot.frame = contribution(
            self._here,
            self._switch,
            flags=flags,
            rank=self._rank,
            job=self.name[0],
            slot=slot.number,
            format=int(call.collective.format),
            next_exponent=call.exponent(slot.announced),
            round=slot.round,
            block=block,
            next_block=slot.announced,
            tag=call.collective.tag,
            lanes=lanes,
        )
        slot.tries = 0
        self.counts.blocks_announced += block is not None
        self.counts.blocks_sent += bool(lanes)
        self.counts.empty_sent += not lanes
        if mine and (trace := call.collective.trace) is not None:
            trace.made()
        self._send(slot)

    def _send(self, slot: Slot) -> None:
        self.counts.frames_sent += 1
        self.counts.bytes_sent += len(slot.frame)
        slot.due = math.inf  # until it is sent
        self.outbox[slot.number] = slot.frame

    def sent(self, number: int, now: float) -> None:
        """The transport has accepted a slot's frame from `outbox`: start its timer."""
        slot = self.slots[number]
        if slot.stripe is not None:
            slot.sent_at = now if slot.tries == 0 else slot.sent_at
            slot.due = now + self.timeout.after(slot.tries)

    # -- Answers ("What is an answer") -----------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """Process a received frame of any kind."""
        self.counts.frames_received += 1
        self.counts.bytes_received += len(frame)
        header = read_answer(frame, self._here, self._switch, job=self.name[0], rank=self._rank)
        if header is None or header.slot >= len(self.slots):
            self.counts.invalid += 1
            return
        log.debug("takes %s", describe(header))
        slot, is_status = self.slots[header.slot], header.kind == FrameKind.STATUS
        if not is_status or self._level_of(header) == 0:
            self.heard_switch_at = now  # what comes from further up says nothing of the own switch
        if is_status:
            self._tell_timer(slot, header, now)
        current = slot.stripe is not None and header.round == slot.round
        if len(self._levels) == 1 and header.flags.RETRANSMISSION and (is_status or not current):
            self.counts.spurious += 1
        if not current:
            self.counts.stale += 1
        elif is_status:
            self._take_status(slot, header)
        elif header.flags.MISMATCH:
            self._mismatch(slot)
        elif self._is_right(slot, header):
            self._take_result(slot, header, lanes_of(frame), now)
        else:
            self.counts.invalid += 1

    def _is_right(self, slot: Slot, header: Packet) -> bool:
        """Whether a result of the round under way is about the same as the contribution."""
        assert slot.stripe is not None
        call = slot.stripe.call
        next_block = header.next_block
        return [header.tag, header.format, header.block] == [
            call.collective.tag,
            call.collective.format,
            NO_BLOCK if slot.block is None else slot.block,
        ] and bool(next_block == NO_BLOCK or next_block < call.count)

    # -- "On RESULT of round r" ------------------------------------------------------------------

    def _take_result(self, slot: Slot, header: Packet, lanes: bytes, now: float) -> None:
        flags = Flag(int(header.flags))
        parts = parts_of(flags)
        if parts <= slot.parts:
            self.counts.duplicates += 1
            return
        self._keep(slot, header, parts, lanes)
        if slot.block is not None:
            self._deliver(slot, flags, parts, lanes)
        slot.parts |= parts
        if slot.parts == WHOLE:
            self._complete(slot, header, now)

    def _keep(self, slot: Slot, header: Packet, parts: frozenset[str], lanes: bytes) -> None:
        """Keep the slot's last result, in case that the switch is lost ("Continuing")."""
        headers = message_of(header)
        if not slot.parts:
            slot.kept = np.zeros(MESSAGE_BYTES, np.uint8)
        slot.kept[: len(headers)] = headers
        begin = len(headers) + (PAYLOAD_BYTES // 2 if parts == SECOND_HALF else 0)
        slot.kept[begin : begin + len(lanes)] = np.frombuffer(lanes, np.uint8)

    def _deliver(self, slot: Slot, flags: Flag, parts: frozenset[str], lanes: bytes) -> None:
        """Dequantise sums into the output."""
        assert slot.stripe is not None
        assert slot.block is not None
        call = slot.stripe.call
        if flags & Flag.NONFINITE:
            call.fill(slot.block, math.nan)
        elif not flags & Flag.PAYLOAD:
            call.fill(slot.block, 0)
        else:
            if flags & Flag.OVERFLOW:
                known = call.collective.overflowed
                call.collective.overflowed = slot.block if known is None else min(known, slot.block)
            call.write(slot.block, slot.exponent, lanes, second_half=parts == SECOND_HALF)
            self.counts.blocks_received += parts != FIRST_HALF

    def _complete(self, slot: Slot, header: Packet, now: float) -> None:
        """Continue: "a stripe is done, or contribute to round r + 1"."""
        assert slot.stripe is not None
        opening, asked = slot.block is None, slot.tries != 0
        by_timer = bool(header.flags.RETRANSMISSION)
        if not by_timer and not opening:  # "Round trips"
            self.timeout.measured(now - slot.sent_at)
            self.round_trips.add(np.array([now - slot.sent_at]))
        if (trace := slot.stripe.call.collective.trace) is not None:
            trace.answered(opening, now)
        slot.round = (slot.round + 1) % _ROUNDS
        if header.next_block == NO_BLOCK:
            self._end_stripe(slot)
        else:
            self._contribute(slot, header.next_block, header.next_exponent)
        if by_timer and asked and slot.stripe is not None:
            # This rank is late by its timer, and the others with it.
            self._mark_as_repeated(slot)

    def _end_stripe(self, slot: Slot) -> None:
        """Run "The slot goes to the next collective in line"."""
        assert slot.stripe is not None
        call, slot.stripe, slot.due = slot.stripe.call, None, math.inf
        slot.heard, slot.tries, slot.parts = None, 0, frozenset()
        self.outbox.pop(slot.number, None)
        if slot.waiting:
            self._open(slot)
        call.stripes_left -= 1
        if call.stripes_left:
            return
        collective = call.collective
        del self._calls[collective.sequence]
        if collective.overflowed is None:
            self.counts.collectives += collective.counted
            collective.finish()
        else:
            self.counts.overflows += 1
            collective.finish(overflow_error(collective, collective.overflowed))

    # -- "Continuing" ----------------------------------------------------------------------------

    @property
    def finished(self) -> npt.NDArray[np.uint32]:
        """How many results each slot has had, in all lives of the job, modulo 2^32."""
        return np.array([(one.origin + one.round) % _ROUNDS for one in self.slots], np.uint32)

    @property
    def awaiting(self) -> npt.NDArray[np.bool_]:
        """Whether each slot waits for a result."""
        return np.array([slot.stripe is not None for slot in self.slots], np.bool_)

    def results(self, slots: Indices) -> Messages:
        """Return the last results of slots."""
        rows = [self.slots[slot].kept for slot in slots.tolist()]
        return np.array(rows, np.uint8).reshape(-1, MESSAGE_BYTES)

    def contributions(self, slots: Indices) -> Messages:
        """Return the contributions of slots that wait for a result."""
        rows = np.zeros((len(slots), MESSAGE_BYTES), np.uint8)
        for row, number in zip(rows, slots.tolist(), strict=True):
            sent = np.frombuffer(bytes(self.slots[number].frame[Aggregation]), np.uint8)
            row[: len(sent)] = sent
        return rows

    def take_results(self, slots: Indices, results: Messages, now: float) -> None:
        """Take the awaited results of different slots from elsewhere than the switch."""
        for number, result in zip(slots.tolist(), results, strict=True):
            slot = self.slots[number]
            header = Aggregation(result.tobytes())
            header.flags |= int(Flag.RETRANSMISSION)  # no sample of a round trip
            if header.flags.MISMATCH:
                self._mismatch(slot)
                return
            if not self._is_right(slot, header):
                raise P4ReduceError(f"slot {number} waits for another result than it is given")
            lanes = result.tobytes()[-PAYLOAD_BYTES:] if header.flags.PAYLOAD else b""
            self._take_result(slot, header, lanes, now)

    def continue_from(self, before: Worker, newest: npt.NDArray[np.uint32], _now: float) -> None:
        """Take over all that another worker has under way, which ends it.

        Args:
            before: of the same rank in an earlier life of the job.
            newest: how many results the rank that is furthest has had of each slot.
        """
        finished = before.finished
        for number, slot in enumerate(before.slots):
            first = self.slots[number].round
            slot.origin = int(newest[number]) - first
            slot.round = (int(finished[number]) - slot.origin) % _ROUNDS
            slot.parts, slot.heard, slot.tries = frozenset(), None, 0
            self.slots[number] = slot
            if slot.stripe is not None:
                slot.frame = readdressed(
                    slot.frame, self._here, self._switch, job=self.name[0], round=slot.round
                )
                self._send(slot)
        self._calls, self._stripes_dealt = before._calls, before._stripes_dealt
        self.next_sequence, self.counts = before.next_sequence, before.counts
        self.round_trips.go_on_from(before.round_trips)
        before.slots, before._calls = [], {}

    # -- STATUS ----------------------------------------------------------------------------------

    def _level_of(self, header: Packet) -> int:
        """Return how many switches above the own one a STATUS is from ("Trees", "Header")."""
        level: int = min(header.next_exponent, len(self._levels) - 1)
        return level

    def _take_status(self, slot: Slot, header: Packet) -> None:
        self.counts.statuses += 1
        if header.flags.PADDED:
            if slot.is_bare:  # "Room": the frame again, at once, with padding
                slot.frame = padded(slot.frame)
                self.counts.padded += 1
                self._send(slot)
            return
        assert slot.stripe is not None
        collective = slot.stripe.call.collective
        number = self._level_of(header)
        level = self._levels[number]
        if number or level.missing(header.contributors):
            slot.heard = number, header.contributors
            if len(self._levels) == 1 and collective.trace is not None:
                collective.trace.status(header.contributors)
        # Ranks that have left, and were not heard before, never will be.
        gone = level.ranks(level.bits(self._left) & ~header.contributors)
        if left := tuple(rank for rank in self._left if rank in gone):
            self.fail(left_error(collective, left))

    def _tell_timer(self, slot: Slot, header: Packet, now: float) -> None:
        """Run "Who asks": a STATUS changes timers, and nothing else."""
        if header.flags.PADDED or slot.due == math.inf or slot.stripe is None:
            return
        level = self._level_of(header)
        heard = level or header.contributors & self._levels[0].bits((self._rank,))
        ahead = (header.round - slot.round) % _ROUNDS
        lost = (ahead == 0 and not heard) or (ahead == 1 and level == 0 and not heard)
        if lost and now - slot.sent_at >= self.timeout.seconds / 2:
            slot.due = now
        elif ahead == 0 and heard and not slot.tries:
            slot.tries = 1
            slot.due = max(slot.due, now + self.timeout.after(1))

    # -- Time ("Timer") --------------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """Return when the next timer or deadline runs out; infinite if there is none."""
        if self.in_dispute:
            return math.inf
        deadlines = [call.collective.deadline for call in self._calls.values()]
        return min([slot.due for slot in self.slots] + deadlines)

    def tick(self, now: float) -> None:
        """Repeat the frames whose timers ran out. If a deadline has passed, end everything."""
        for slot in self.slots:
            if slot.due <= now:
                self.repeat(slot)
        if self.in_dispute:
            return
        for call in self._calls.values():
            if call.collective.deadline <= now:
                self.fail(self._late_error(call.collective, now))
                return

    def repeat(self, slot: Slot) -> None:
        """Send "that same packet again with RETRANSMISSION set", and padded if it has no lanes."""
        assert slot.stripe is not None
        if slot.is_bare:
            slot.frame = padded(slot.frame)
        slot.tries += 1
        self.counts.retransmissions += 1
        if (trace := slot.stripe.call.collective.trace) is not None:
            trace.repeated(1)
        self._send(slot)
        self._mark_as_repeated(slot)

    def _mark_as_repeated(self, slot: Slot) -> None:
        slot.frame[Aggregation].flags |= int(Flag.RETRANSMISSION)

    def resume(self, now: float) -> None:
        """Continue over a new transport. Frames in flight on the old one count as lost."""
        for slot in self.slots:
            if slot.stripe is not None:
                slot.due = now

    def postpone(self, until: float) -> None:
        """Let no call reach its deadline before `until`."""
        for call in self._calls.values():
            call.collective.deadline = max(call.collective.deadline, until)

    def use_local_floor(self) -> None:
        """Use the longer timers of a lossless link: a missing answer is only late."""
        self.timeout.use_local_floor()

    # -- When it goes wrong ("What goes wrong, and what then") -----------------------------------

    @property
    def idle(self) -> bool:
        """Whether all calls are complete."""
        return not self._calls

    def ranks_left(self, ranks: tuple[int, ...], now: float) -> None:
        """Note ranks that have left. The switch still has results with their contributions."""
        if ranks != self._left:
            self._left = ranks
            for slot in self.slots:
                slot.due = now if slot.due < math.inf else slot.due

    def fail(self, error: P4ReduceError) -> None:
        """End all calls with an error. No further sums are possible."""
        self.broken = self.broken or error
        self.in_dispute = False
        self._halt()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.collective.finish(error)

    def _halt(self) -> None:
        """Let no slot wait for anything any more."""
        self.outbox.clear()
        for slot in self.slots:
            slot.waiting.clear()
            slot.stripe, slot.due = None, math.inf

    def _mismatch(self, slot: Slot) -> None:
        assert slot.stripe is not None
        found = slot.stripe.call.collective
        dispute = Dispute.of(found, [call.collective for call in self._calls.values()])
        if self.disputed is None:
            self.fail(dispute.error)
            return
        self.in_dispute = True
        self._halt()
        self.disputed(dispute)

    def _late_error(self, late: Collective, now: float) -> P4ReduceError:
        busy = [slot for slot in self.slots if slot.stripe is not None]
        own = [slot for slot in busy if slot.stripe and slot.stripe.call.collective is late]
        return late_error(
            late,
            now,
            heard=[
                (slot.number, self._levels[slot.heard[0]], slot.heard[1])
                for slot in own or busy
                if slot.heard is not None
            ],
            slot=(own or busy)[0].number,
            tries=max(slot.tries for slot in own or busy),
            answered=self.heard_switch_at >= late.started,
            behind=not own,
        )
