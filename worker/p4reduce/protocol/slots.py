# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the protocol: docs/protocol.md, "What a worker does".

`SlotMachine` holds the state of all slots of a job in numpy arrays. Frames go in and rows of
frames to be sent come out; it has no thread, no socket and no clock of its own. A batch of frames
costs a fixed number of numpy calls, however many frames there are, besides what touches their
lanes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from p4reduce_native.link import Link

from p4reduce.errors import (
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)
from p4reduce.machine_code import Library, native_library
from p4reduce.protocol.lane_codec import Lanes
from p4reduce.protocol.native_codec import codec_for
from p4reduce.protocol.native_slots import NativeSlots
from p4reduce.protocol.native_turn import LinkedTransport, NativeTurn, Tenure
from p4reduce.protocol.timers import timers_of
from p4reduce.protocol.window import Gate
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.native_stream import Stream
from p4reduce.tensors.stream import Collective, overflow_error
from p4reduce.wire.answers import (
    BLOCK,
    COMPARED,
    CONTRIBUTORS,
    ECHOED,
    FIRST,
    JOB,
    KIND_FLAGS_RANK,
    LENGTHS,
    NEXT_BLOCK,
    PARTS,
    ROUND,
    SECOND,
    SLOT_FORMAT_EXPONENT,
    TAG,
    WHOLE,
    Answers,
    own_answers,
)
from p4reduce.wire.format import (
    AGG_BYTES,
    AGGREGATION_VERSION,
    EMPTY_FRAME_BYTES,
    HALF_FRAME_BYTES,
    NO_BLOCK,
    NONFINITE_EXPONENT,
    PAYLOAD_BYTES,
    PAYLOAD_FRAME_BYTES,
    Endpoint,
    Flag,
    Format,
    Kind,
    template,
)
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Level, describe_ranks, one_switch

# Rows of a slot in the buffer of frames to send: one for each shape that a contribution can have,
# so that addresses, lengths and checksums are written once per job.
_EMPTY, _PAYLOAD, _PADDED, _SHAPES = 0, 1, 2, 3

_IDLE = -1  # in `_expected`: no round number
_OPENING = -1  # in `_block`: the round that opens a stripe

# Plain numbers: to look up a member of an enumeration costs a microsecond before Python 3.12.
_STATUS = int(Kind.STATUS) << 8
_HAS_PAYLOAD, _OVERFLOW, _NONFINITE, _MISMATCH, _RETRANSMISSION = (
    int(flag)
    for flag in (Flag.PAYLOAD, Flag.OVERFLOW, Flag.NONFINITE, Flag.MISMATCH, Flag.RETRANSMISSION)
)
_PADDED_FLAG, _TELL_ALL = int(Flag.PADDED), int(Flag.TELL_ALL)
_NO_HALVES = np.uint32(0xFFFFFFFF ^ (Flag.FIRST_HALF | Flag.SECOND_HALF) << 16)

_QUIET = 1 / 2  # of the timeout, without any answer: then it is not single frames that are lost
FEW = 8
"""So many ranks at a switch all ask by themselves, which costs little and is soonest."""

_DOUBLINGS = 10  # of the frames that ask for all: more than there are slots
_TRIES_TO_TELL = 3  # retransmissions without any answer, after which the switch is not there


class SlotMachine:
    """Runs a job's collectives through its slots.

    Attributes:
        outgoing: the frames that can be sent.
        counts: statistics.
        timers: of all slots, with what they have measured.
        gate: lets out as many slots' frames at a time as are good.
        broken: why no collective can be run any more, or None.
        disputed: called when the ranks do not agree; must not wait, and see to it that `fail` ends
            the dispute soon. Until then nothing runs. None: it fails at once.
        next_sequence: number of the first collective that it has not been given.
        heard_switch_at: when the switch last answered anything; -inf if it never did.
        key: the job times 65,536 plus the rank, which all answers to it carry.

    Args:
        slots: how many the job has; all ranks have the same number.
        job: its incarnation id.
        rank: own.
        world_size: of the job.
        here: own addresses.
        switch: those of the switch.
        urgent: how many of the slots, the last ones, are for urgent collectives alone.
        levels: the switches that sum for this rank, its own first, then in a tree those above it.
            None: there is one, with all ranks on it.
        native: whether to compute in machine code where there is any, or with numpy.
        few: up to so many ranks at a switch all ask by themselves; of more one asks for all.
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
        urgent: int = 0,
        levels: Sequence[Level] | None = None,
        native: bool = True,
        few: int = FEW,
    ) -> None:
        self.counts = Counts()
        self._levels = tuple(levels or one_switch(world_size))
        at_switch = self._levels[0].own_ranks
        many = len(at_switch) > few
        self._asks_for_all = many and rank == at_switch[0]
        place = at_switch.index(rank) if many else None
        self.timers = timers_of(slots, place, in_tree=len(self._levels) > 1)
        self.gate = Gate(slots, self.timers, urgent)
        self.broken: P4ReduceError | None = None
        self.disputed: Callable[[Dispute], object] | None = None
        self._in_dispute = False
        self.key = job << 16 | rank
        self._slots = slots
        self._urgent_from = slots - urgent
        self._world_size = world_size
        # -- What runs where ---------------------------------------------------------------
        self._collectives: dict[int, Collective] = {}
        self._queues: list[deque[Collective]] = [deque() for _ in range(slots)]
        self._stripes_given = [0, 0]  # to bulk, to urgent collectives
        self.next_sequence = 0
        self._owner = np.zeros(slots, np.int64)  # sequence number of the collective
        self._count = np.zeros(slots, np.int64)  # its blocks
        self._tag = np.zeros(slots, np.uint32)
        self._format = np.zeros(slots, np.uint32)
        self._behind = np.zeros(slots, np.bool_)  # whether a collective waits for the slot

        # -- The round under way in each slot ----------------------------------------------
        self._next_round = np.zeros(slots, np.uint32)
        self._expected = np.full(slots, _IDLE, np.int64)
        self._block = np.full(slots, _OPENING, np.int64)
        self._exponent = np.zeros(slots, np.uint8)
        self._announced = np.zeros(slots, np.int64)  # own next block
        self._parts = np.zeros(slots, np.uint8)  # halves that have come
        self._heard = np.zeros(slots, np.uint64)  # from the last STATUS; 0: there was none
        self._level = np.zeros(slots, np.uint8)  # which switch that is from
        self._row = np.zeros(slots, np.int64)  # of the frame to repeat
        # What the header of a plain result has to be, as far as it is ECHOED; of no frame's kind
        # where the slot does not wait for one.
        self._awaited = np.zeros((slots, AGG_BYTES // 4), np.uint32)
        self._some_halves = False
        self._earliest_deadline = np.inf  # or earlier

        # -- The others ----------------------------------------------------------------------
        self.heard_switch_at = -np.inf
        self._left: tuple[int, ...] = ()
        self._left_bits = np.zeros(len(self._levels), np.uint64)
        self._everybody = np.uint64(self._levels[0].missing(0))
        self._own_bit = self._levels[0].bits((rank,))

        # -- Frames --------------------------------------------------------------------------
        self.outgoing = FrameBuffer(slots * _SHAPES)
        self._sendable: list[Indices] = []
        self._first_word = AGGREGATION_VERSION << 28 | Kind.CONTRIBUTE << 24 | rank
        self._plain = AGGREGATION_VERSION << 28 | Kind.RESULT << 24 | Flag.PAYLOAD << 16 | rank
        self._slot_words = (np.arange(slots) << 16).astype(np.uint32)
        self._job = job
        self._fill_templates(here, switch, rank)
        self._wanted, self._mask = own_answers(here, switch, rank, job)

        # -- Scratch -------------------------------------------------------------------------
        self._codecs: dict[tuple[Format, bool], Lanes] = {}
        self._mark = np.zeros(2 * slots, np.int64)
        self._numbers = np.arange(4096)
        self._library: Library | None = None
        self._native: NativeSlots | None = None
        self.compute_natively(native)

    def compute_natively(self, wanted: bool) -> None:
        """Choose between machine code, where there is any, and numpy; at any moment."""
        self._codecs.clear()
        self._native = None
        self._library = native_library() if wanted else None
        if self._library is None:
            return
        self._native = NativeSlots(
            self._library,
            {
                "slots": self._slots,
                "job": self._job,
                "levels": len(self._levels),
                "everybody": int(self._everybody),
                "own_bit": self._own_bit,
                "contribution": self._first_word,
                "result": self._plain & ~(Flag.PAYLOAD << 16),
            },
            self._wanted,
            self._mask,
            {
                "expected": self._expected,
                "block": self._block,
                "announced": self._announced,
                "row": self._row,
                "next_round": self._next_round,
                "awaited": self._awaited,
                "exponent": self._exponent,
                "parts": self._parts,
                "heard": self._heard,
                "level": self._level,
                "owner": self._owner,
                "count": self._count,
                "tag": self._tag,
                "format": self._format,
                "behind": self._behind,
            },
            self.outgoing,
            self.timers,
            self.gate,
        )
        for slot in np.flatnonzero(self._expected != _IDLE):
            self._native.streams[slot] = self._stream(self._collectives[int(self._owner[slot])])
        self._native.ranks_left(self._left_bits)

    def _stream(self, collective: Collective) -> int:
        """Return the address of what C knows a collective by; 0 if it cannot do it."""
        stream = Stream.of(collective, self._world_size)
        return stream.address if stream.regular else 0

    def _fill_templates(self, here: Endpoint, switch: Endpoint, rank: int) -> None:
        # Here, so that only a rank that joins a job waits for scapy to be imported.
        from p4reduce.wire.layer import Aggregation

        header = Aggregation(kind=Kind.CONTRIBUTE, rank=rank, job=self._job)
        empty = template(here, switch, header)
        filled = template(here, switch, header, bytes(PAYLOAD_BYTES))
        for slot in range(self._slots):
            self.outgoing.put(slot * _SHAPES + _EMPTY, empty)
            self.outgoing.put(slot * _SHAPES + _PAYLOAD, filled)
            self.outgoing.put(slot * _SHAPES + _PADDED, filled)

    # -- From the engine -----------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        """When the first timer or collective's deadline runs out; infinite if there is none."""
        return min(self.timers.next_due, self._earliest_deadline)

    @property
    def idle(self) -> bool:
        """Whether all collectives are over."""
        return not self._collectives

    @property
    def round_trips(self) -> RoundTrips:
        """What was measured."""
        return self.timers.round_trips

    @property
    def timeout_seconds(self) -> float:
        """After how long a contribution is sent again, now."""
        return self.timers.timeout.seconds

    @property
    def window_size(self) -> int:
        """How many slots may have a contribution under way, now."""
        return self.gate.window.size

    def be_patient(self) -> None:
        """Frames go by memory or by a Unix socket, which lose none."""
        self.timers.be_patient()

    def go_on_counting(self, before: Counts, round_trips: RoundTrips) -> None:
        """Count on from what an earlier life of the job has counted and measured."""
        self.counts = before
        self.timers.round_trips.go_on_from(round_trips)

    def take_sendable(self) -> Indices:
        """Return the rows of `outgoing` that are to be sent now; `sent` has to follow."""
        if not self._sendable:
            if not self.gate.holds_back:
                return self._numbers[:0]
            rows = self._numbers[:0]
        else:
            rows = self._sendable[0] if len(self._sendable) == 1 else np.concatenate(self._sendable)
            self._sendable.clear()
        if self.gate.open:
            return rows
        # What a slot has to send is its latest row, whichever was kept back.
        return self._row[self.gate.let_out(rows // _SHAPES)]

    def sent(self, rows: Indices, now: float) -> None:
        """Start the timers of rows that the transport took."""
        slots = rows // _SHAPES
        waiting = self._expected[slots] != _IDLE
        if np.count_nonzero(waiting) != len(slots):
            # A repetition that left only after its result had come, as the transport was full.
            slots = slots[waiting]
        self.timers.sent(slots, now)
        if self.broken is not None or self._in_dispute:
            self.timers.stop()

    def submit(self, collective: Collective) -> None:
        """Queue a collective behind those of its class; all ranks do so in the same order."""
        if self._left and self.broken is None and not self._in_dispute:
            self.fail(self._left_error(self._left, collective))
        if self.broken is not None:
            collective.finish(self.broken)
            return
        if self._in_dispute:
            self._collectives[collective.sequence] = collective
            self.next_sequence = collective.sequence + 1
            return
        slots = self._place(collective)
        self._adopt(collective)
        self.counts.blocks += collective.count
        busy = self._expected[slots] != _IDLE
        if np.count_nonzero(busy):
            for slot in slots[busy].tolist():
                self._queues[slot].append(collective)
            self._behind[slots[busy]] = True
            slots = slots[~busy]
        if len(slots):
            self._open(collective, slots)

    def _place(self, collective: Collective) -> Indices:
        """Give a collective its slots, if it has none yet; return them in its stripes' order."""
        first, number = collective.first_slot, collective.slots
        if not collective.placed:
            given = self._stripes_given[collective.urgent]
            collective.offset = first + given % number
            self._stripes_given[collective.urgent] = given + collective.stripes
            collective.placed = True
        return first + (collective.offset - first + self._numbers[: collective.stripes]) % number

    def _adopt(self, collective: Collective) -> None:
        self.next_sequence = collective.sequence + 1
        self._collectives[collective.sequence] = collective
        self._earliest_deadline = min(self._earliest_deadline, collective.deadline)

    def lend(self, collective: Collective) -> tuple[int, Indices] | None:
        """Let C open a collective's stripes, in the thread that waits for it; see `p4r_turn_lend`.

        To be called while nothing is under way, and no other thread uses this.

        Returns:
            What C knows it by, and its slots. None: it has to be submitted.
        """
        if self._native is None or self.broken is not None or self._left or not self.idle:
            return None
        slots = self._place(collective)
        stream = self._stream(collective)
        if not stream:
            return None
        if collective.course is not None:
            collective.course.open()
        return stream, slots

    def ready_to_lend(self) -> None:
        """Give C all figures, before callers run collectives."""
        if self._native is not None:
            self._hand_over(self._native)

    def regain(
        self,
        turn: NativeTurn,
        collective: Collective | None,
        sift: Callable[[FrameBuffer, int], int] | None,
    ) -> None:
        """Go on after callers have run collectives; see `run`.

        Args:
            collective: the latest that was lent.
        """
        native = self._native
        assert native is not None
        sequence, unfinished = turn.begun
        self.next_sequence = max(self.next_sequence, sequence + 1)
        if unfinished and collective is not None:
            self._adopt(collective)
        self._take_back(native)
        self._take_odd(turn, native, sift)

    def fail(self, error: P4ReduceError) -> None:
        """End everything: nothing can be summed any more."""
        if self.broken is None:
            self.broken = error
        self._in_dispute = False
        self._halt()
        for collective in self._collectives.values():
            collective.finish(error)
        self._collectives.clear()

    def _halt(self) -> None:
        """Let no slot wait for anything any more."""
        self._expected[:] = _IDLE
        self._awaited[:] = 0
        self.timers.stop()
        self.gate.leave()
        self._earliest_deadline = np.inf
        self._sendable.clear()
        for queue in self._queues:
            queue.clear()
        self._behind[:] = False

    def ranks_left(self, ranks: tuple[int, ...], now: float) -> None:
        """Ranks have left the job: what they had not contributed to will never be complete.

        What they had can still be fetched from the switch, so it is asked who is missing.
        """
        if ranks != self._left:
            self._left = ranks
            self._left_bits[:] = [level.bits(ranks) for level in self._levels]
            if self._native is not None:
                self._native.ranks_left(self._left_bits)
            self.timers.hurry(now)

    def resume(self, now: float) -> None:
        """Go on over a new transport: what was under way on the old one counts as lost."""
        self.timers.run_out(self._expected != _IDLE, now)

    def postpone(self, until: float) -> None:
        """Let no collective come to its deadline before `until`."""
        for collective in self._collectives.values():
            collective.deadline = max(collective.deadline, until)
        self._earliest_deadline = max(self._earliest_deadline, until)

    def expire(self, now: float) -> None:
        """Repeat the frames whose time is up; end everything if a deadline has passed."""
        if self.next_due > now or self._in_dispute:
            return
        expired = self.timers.expired(now)
        for slots in self._by_class(expired):
            if len(slots):
                self._repeat(self._worth_repeating(slots, now))
        for collective in self._collectives.values():
            if collective.deadline <= now:
                self.fail(self._timeout_error(collective, now))
                return
        self._earliest_deadline = min(
            (one.deadline for one in self._collectives.values()), default=np.inf
        )

    def receive(self, buffer: FrameBuffer, count: int, now: float) -> None:
        """Take frames that came in, the first `count` rows of a buffer, whose order may change."""
        if self._native is not None and count <= self._native.most:
            count = self._receive_natively(self._native, buffer, count, now)
        if count:
            self._receive(buffer, count, now)

    def _receive(self, buffer: FrameBuffer, count: int, now: float) -> None:
        with np.errstate(over="ignore"):  # sums beyond the dtype become infinite
            plain = self._plain_results(buffer, count)
            if plain is None:
                self._receive_any(buffer, count, now)
                return
            collective, answers, parts = plain
            self.counts.frames_received += count
            self.counts.bytes_received += count * int(buffer.lengths[0])
            self._heard_switch(now)
            if parts is None:
                blocks = self._block[answers.slots]
                self._decode(collective, buffer, answers, blocks, WHOLE)
            else:
                answers = self._join_plain_halves(collective, buffer, answers, parts)
            if len(answers):
                self._complete(collective, answers, now)

    def _receive_natively(
        self, native: NativeSlots, buffer: FrameBuffer, count: int, now: float
    ) -> int:
        """Let C do what is regular. Returns how many frames are left, as the first rows."""
        self._hand_over(native)
        native.receive(buffer, count, now)
        self._take_back(native)
        return native.odd

    def native_turn(self, transport: object, tenure: Tenure | None = None) -> NativeTurn | None:
        """Return what lets C run the engine's loop; None: it cannot, on this transport."""
        if self._native is None or not isinstance(getattr(transport, "link", None), Link):
            return None
        return NativeTurn(self._native, cast(LinkedTransport, transport), tenure)

    def run(
        self,
        turn: NativeTurn,
        backlog: Indices,
        sift: Callable[[FrameBuffer, int], int] | None = None,
    ) -> int:
        """Send and receive in C until there is something that is not regular; take that in.

        Args:
            turn: of the transport.
            backlog: rows that were taken as `sendable` before, and have not been sent.
            sift: takes frames for other jobs of the same port out of the first rows of a buffer;
                returns how many are left. None: there are no other jobs.

        Returns:
            Why it is back: see `native_turn`.
        """
        native = self._native
        assert native is not None
        rows = self.take_sendable()
        if len(backlog):
            rows = np.concatenate((backlog, rows))
        self._hand_over(native)
        why = turn.run(rows, self._earliest_deadline)
        self._take_back(native)
        self._take_odd(turn, native, sift)
        return why

    def _take_odd(
        self,
        turn: NativeTurn,
        native: NativeSlots,
        sift: Callable[[FrameBuffer, int], int] | None,
    ) -> None:
        odd = native.odd
        if odd and sift is not None:
            odd = sift(turn.received, odd)
        if odd:
            self._receive(turn.received, odd, time.monotonic())

    def _hand_over(self, native: NativeSlots) -> None:
        native.hand_over(self.heard_switch_at, self._some_halves)

    def _take_back(self, native: NativeSlots) -> None:
        """Go on after C: stripes that are over, and rows to send."""
        self.heard_switch_at, self._some_halves = native.take_back(self.counts)
        ended, late = native.ended
        if len(ended):
            for collective, which in self._by_owner(ended):
                self._end_stripes(collective, ended if which is None else ended[which])
            self.outgoing.flags[self._row[ended[late]]] |= np.uint8(_RETRANSMISSION)
        if native.take_finished():
            for collective in [one for one in self._collectives.values() if not one.remaining]:
                self._finish(collective)
        queued = native.queued
        if len(queued):
            self._sendable.append(queued)

    def _heard_switch(self, now: float) -> None:
        self.heard_switch_at = now
        self.gate.window.heard(now)

    def _receive_any(self, buffer: FrameBuffer, count: int, now: float) -> None:
        answers = self._answers_to_us(buffer, count)
        if not len(answers):
            return
        quiet = self._quiet(now)
        # What comes for all ranks of a tree's switch says nothing of this rank's frames.
        if np.count_nonzero((answers.flags < _STATUS) | (self._levels_of(answers) == 0)):
            self._heard_switch(now)
        self._tell_timers(answers, quiet, now)
        answers, without_room = self._under_way(answers)
        if len(answers):
            self._take_results(buffer, answers, now)
        if without_room is not None:
            self._repeat_with_room(without_room)

    def _take_results(self, buffer: FrameBuffer, answers: Answers, now: float) -> None:
        parts = PARTS[answers.flags]
        if np.count_nonzero(parts != WHOLE):
            complete = self._join_halves(buffer, answers, parts)
        else:
            complete = [self._once_a_slot(answers)]
            self._deliver(buffer, complete[0], WHOLE)
        for some in complete:
            if len(some):
                late = some.slots[some.flags & _RETRANSMISSION != 0]
                for collective, which in self._by_owner(some.slots):
                    self._complete(
                        collective, some if which is None else some.only(which), now, late
                    )

    def _plain_results(
        self, buffer: FrameBuffer, count: int
    ) -> tuple[Collective, Answers, npt.NDArray[np.uint8] | None] | None:
        """Recognise what nearly all batches are: sums as awaited, all whole or all in halves.

        All is compared at once, to find out whether anything is different. None: something is, or
        there are several collectives. For halves the third item says which ones they are.
        """
        length = buffer.lengths[0]
        if np.count_nonzero(buffer.lengths[:count] != length):
            return None
        header = buffer.header[:count].astype(np.uint32)
        parts = None
        if length == HALF_FRAME_BYTES:
            parts = PARTS[header[:, KIND_FLAGS_RANK] >> 16 & 0xFF]
            header[:, KIND_FLAGS_RANK] &= _NO_HALVES
        elif length != PAYLOAD_FRAME_BYTES:
            return None
        slots = (header[:, SLOT_FORMAT_EXPONENT] >> 16).astype(np.int64)
        if np.count_nonzero(slots >= self._slots):
            return None
        owners = self._owner[slots]
        collective = self._collectives.get(int(owners[0]))
        if collective is None or np.count_nonzero(owners != owners[0]):
            return None
        different = self._awaited[slots]
        different ^= header
        different &= ECHOED
        elsewhere = buffer.raw[:count, COMPARED] & self._mask
        elsewhere ^= self._wanted
        if np.count_nonzero(different) or np.count_nonzero(elsewhere):
            return None
        rows = self._numbers[:count]
        places = slots
        if parts is not None:
            if np.count_nonzero(self._parts[slots] & parts) or np.count_nonzero(parts - 1 > 1):
                return None  # not as first or second half, or there already
            places = slots + (parts == SECOND) * self._slots
        self._mark[places] = rows
        if np.count_nonzero(self._mark[places] != rows):
            return None
        next_blocks = header[:, NEXT_BLOCK]
        beyond = np.count_nonzero(next_blocks >= collective.count)
        if beyond and beyond != np.count_nonzero(next_blocks == NO_BLOCK):
            return None
        return collective, Answers(header.T, header[:, KIND_FLAGS_RANK], slots, rows), parts

    def _join_plain_halves(
        self,
        collective: Collective,
        buffer: FrameBuffer,
        answers: Answers,
        parts: npt.NDArray[np.uint8],
    ) -> Answers:
        """Deliver halves, none of which has come before; return those that complete a round."""
        before = self._parts[answers.slots]
        second = parts == SECOND
        number = np.count_nonzero(second)
        for part, which, some in ((FIRST, ~second, len(parts) - number), (SECOND, second, number)):
            if some:
                halves = answers if some == len(parts) else answers.only(which)
                self._decode(collective, buffer, halves, self._block[halves.slots], part)
                self._parts[halves.slots] |= part
        self._some_halves = True
        # Of two that come together, the second one does.
        completing = self._parts[answers.slots] == WHOLE
        completing &= second | (before == SECOND)
        return answers if np.count_nonzero(completing) == len(parts) else answers.only(completing)

    # -- What came in ----------------------------------------------------------------------------

    def _answers_to_us(self, buffer: FrameBuffer, count: int) -> Answers:
        """Leave out what is truncated, garbage or somebody else's."""
        lengths = buffer.lengths[:count]
        self.counts.frames_received += count
        self.counts.bytes_received += int(lengths.sum())
        header = buffer.header[:count].T.astype(np.uint32, order="C")
        flags = (header[KIND_FLAGS_RANK] >> 16) & 0xFFF
        slots = (header[SLOT_FORMAT_EXPONENT] >> 16).astype(np.int64)
        different = buffer.raw[:count, COMPARED] & self._mask
        good = np.logical_and.reduce(different == self._wanted, axis=1)
        good &= LENGTHS[flags] == lengths
        good &= slots < self._slots
        return self._all_but(~good, Answers(header, flags, slots, self._numbers[:count]), "invalid")

    def _all_but(self, bad: npt.NDArray[np.bool_], answers: Answers, count: str) -> Answers:
        """Leave some out and count them."""
        number = int(np.count_nonzero(bad))
        if not number:
            return answers
        setattr(self.counts, count, getattr(self.counts, count) + number)
        return answers.only(~bad)

    def _under_way(self, answers: Answers) -> tuple[Answers, Answers | None]:
        """Leave out all but the results that the slots wait for, and take notice of STATUS.

        From here on `flags` are without the kind. The second item are statuses that ask for room.
        """
        stale = self._expected[answers.slots] != answers.header[ROUND]
        if len(self._levels) == 1:
            # The switch had the contribution before it was repeated, and we its result or no
            # reason to wait for one yet. In a tree others may be meant.
            needless = (stale | (answers.flags >= _STATUS)) & (answers.flags & _RETRANSMISSION != 0)
            self.counts.spurious += int(np.count_nonzero(needless))
        answers = self._all_but(stale, answers, "stale")
        is_status = answers.flags >= _STATUS
        without_room = None
        if np.count_nonzero(is_status):
            without_room = self._take_statuses(answers.only(is_status))
            answers = answers.only(~is_status)
        answers.flags &= 0xFF
        if not len(answers) or self.broken is not None or self._in_dispute:
            return answers.only(self._numbers[:0]), without_room
        mismatch = answers.flags & _MISMATCH != 0
        if np.count_nonzero(mismatch):
            self._mismatch(int(answers.slots[mismatch][0]))
            return answers.only(self._numbers[:0]), without_room
        slots, header = answers.slots, answers.header
        next_block = header[NEXT_BLOCK]
        wrong = self._tag[slots] != header[TAG]
        wrong |= self._format[slots] != header[SLOT_FORMAT_EXPONENT] >> 8 & 0xFF
        wrong |= self._block[slots] & NO_BLOCK != header[BLOCK]
        wrong |= (next_block >= self._count[slots]) & (next_block != NO_BLOCK)
        return self._all_but(wrong, answers, "invalid"), without_room

    def _once_a_slot(self, answers: Answers) -> Answers:
        """Leave out duplicates within a batch."""
        if len(answers) == 1:
            return answers
        slots = answers.slots
        numbers = self._numbers[: len(answers)]
        self._mark[slots] = numbers
        by_timer = answers.flags & _RETRANSMISSION != 0
        if np.count_nonzero(by_timer):
            # The result that came of itself rather than the one that a timer asked for.
            self._mark[slots[~by_timer]] = numbers[~by_timer]
        twice = self._mark[slots] != numbers
        if len(self._levels) == 1:
            self.counts.spurious += int(np.count_nonzero(twice & by_timer))
        return self._all_but(twice, answers, "duplicates")

    def _join_halves(
        self, buffer: FrameBuffer, answers: Answers, parts: npt.NDArray[np.uint8]
    ) -> list[Answers]:
        """Deliver halves and wholes; return those that complete a round, each slot once."""
        complete: list[Answers] = []
        for part in (FIRST, SECOND, WHOLE):
            which = parts == part
            if not np.count_nonzero(which):
                continue
            some = answers.only(which)
            some = self._all_but(self._parts[some.slots] & part == part, some, "duplicates")
            some = self._once_a_slot(some)
            if len(some):
                self._deliver(buffer, some, part)
                self._parts[some.slots] |= part
                self._some_halves = True
                complete.append(some.only(self._parts[some.slots] == WHOLE))
        return complete

    def _tell_timers(self, answers: Answers, quiet: bool, now: float) -> None:
        """Let timers know who was heard: another rank may have asked for all of this switch."""
        said = answers.flags >= _STATUS
        said &= answers.flags & _PADDED_FLAG == 0
        if not np.count_nonzero(said):
            return
        statuses = answers.only(said)
        header, slots = statuses.header, statuses.slots
        levels = self._levels_of(statuses)
        heard = header[CONTRIBUTORS].astype(np.uint64) << np.uint64(32)
        heard |= header[CONTRIBUTORS + 1]
        # Who is in what a switch above has heard is this one, with all of its ranks.
        own = (levels != 0) | (heard & np.uint64(self._own_bit) != 0)
        ahead = header[ROUND] - self._expected[slots].astype(np.uint32)
        for slot, mine, level, rounds in zip(
            slots.tolist(), own.tolist(), levels.tolist(), ahead.tolist(), strict=True
        ):
            if self._expected[slot] == _IDLE:
                continue
            if rounds == 0:
                self.timers.told(slot, mine, quiet, now)
            elif rounds == 1 and level == 0 and not mine:
                # The others are in the next round, so this one has a result.
                self.timers.missed(slot, now)

    def _levels_of(self, statuses: Answers) -> npt.NDArray[np.uint8]:
        """Return how many switches above the own one they are from."""
        level = statuses.header[SLOT_FORMAT_EXPONENT].astype(np.uint8)  # the lowest byte
        known: npt.NDArray[np.uint8] = np.minimum(level, np.uint8(len(self._levels) - 1))
        return known

    def _take_statuses(self, answers: Answers) -> Answers | None:
        """Note who was heard; return those that rather say that there is no room for the sums."""
        self.counts.statuses += len(answers)
        roomless = answers.flags & _PADDED_FLAG != 0
        without_room = None
        if np.count_nonzero(roomless):
            without_room = answers.only(roomless)
            answers = answers.only(~roomless)
        if not len(answers):
            return without_room
        wide = answers.header.astype(np.uint64)
        heard = wide[CONTRIBUTORS] << np.uint64(32) | wide[CONTRIBUTORS + 1]
        level = self._levels_of(answers)
        # In a tree the own switch also says that all its ranks are there, while others are not.
        some_missing = (level > 0) | (heard & self._everybody != self._everybody)
        self._heard[answers.slots[some_missing]] = heard[some_missing]
        self._level[answers.slots[some_missing]] = level[some_missing]
        if len(self._levels) == 1:  # where bits are ranks
            told = zip(answers.slots[some_missing].tolist(), heard[some_missing], strict=True)
            for slot, bits in told:
                course = self._collectives[int(self._owner[slot])].course
                if course is not None:
                    course.told(int(bits))
        without = self._left_bits[level] & ~heard
        missing = np.flatnonzero(without)
        if len(missing):
            first = missing[0]
            above = self._levels[level[first]]
            behind = set(above.ranks(int(np.bitwise_or.reduce(without[level == level[first]]))))
            left = tuple(rank for rank in self._left if rank in behind)
            collective = self._collectives[int(self._owner[answers.slots[first]])]
            self.fail(self._left_error(left, collective))
        return without_room

    def _mismatch(self, slot: int) -> None:
        collective = self._collectives[int(self._owner[slot])]
        dispute = Dispute.of(collective, self._collectives.values())
        if self.disputed is None:
            self.fail(dispute.error)
            return
        self._in_dispute = True
        self._halt()
        self.disputed(dispute)

    def _by_owner(self, slots: Indices) -> list[tuple[Collective, Indices | None]]:
        """Tell slots apart by collective; None stands for all of them."""
        owners = self._owner[slots]
        first = owners[0]
        if not np.count_nonzero(owners != first):
            return [(self._collectives[int(first)], None)]
        return [
            (self._collectives[int(owner)], np.flatnonzero(owners == owner))
            for owner in np.unique(owners)
        ]

    # -- Results into the output -----------------------------------------------------------------

    def _deliver(self, buffer: FrameBuffer, answers: Answers, part: int) -> None:
        """Write sums, or one half of them, into the outputs."""
        about_block = self._block[answers.slots] != _OPENING
        if np.count_nonzero(about_block) != len(answers):
            answers = answers.only(about_block)
            if not len(answers):
                return
        for collective, which in self._by_owner(answers.slots):
            some = answers if which is None else answers.only(which)
            # Without payload the sum is zero, or not a number.
            plain = some.flags & (_HAS_PAYLOAD | _NONFINITE) == _HAS_PAYLOAD
            if np.count_nonzero(plain) != len(some):
                odd = some.only(~plain)
                not_a_number = odd.flags & _NONFINITE != 0
                blocks = self._block[odd.slots]
                collective.target.fill(blocks[~not_a_number], 0)
                if collective.dtype.kind == "f":
                    collective.target.fill(blocks[not_a_number], np.nan)
                some = some.only(plain)
            if not len(some):
                continue
            blocks = self._block[some.slots]
            overflowed = some.flags & _OVERFLOW != 0
            if np.count_nonzero(overflowed):
                collective.overflowed = int(blocks[overflowed].min())
            self._decode(collective, buffer, some, blocks, part)

    def _decode(
        self,
        collective: Collective,
        buffer: FrameBuffer,
        answers: Answers,
        blocks: Indices,
        part: int,
    ) -> None:
        codec = self._codec(collective)
        exponents = self._exponent[answers.slots]
        codec.decode(collective, blocks, exponents, buffer, answers.rows, part)
        if part != FIRST:
            self.counts.blocks_received += len(blocks)

    def _codec(self, collective: Collective) -> Lanes:
        kind = collective.format, collective.dtype.kind == "f"
        codec = self._codecs.get(kind)
        if codec is None:
            codec = codec_for(*kind, self._world_size, self._slots, self.outgoing, self._library)
            self._codecs[kind] = codec
        return codec

    # -- On to the next round --------------------------------------------------------------------

    def _complete(
        self, collective: Collective, answers: Answers, now: float, late: Indices | None = None
    ) -> None:
        """Go on after rounds whose sums have been delivered.

        `late` are the slots with an answer that a timer had a part in.
        """
        slots = answers.slots
        if collective.course is not None:
            opening = np.count_nonzero(self._block[slots] == _OPENING) != 0
            collective.course.answered(opening, now)
        in_time = told = again = None
        if late is not None and len(late):
            # What follows a repeated result is late by this rank's timer, for the other ranks too.
            again = late[self.timers.tries[late] != 0]
            in_time = ~np.isin(slots, late)
        if self.timers.backed_off:
            told = self._heard[slots] != 0
        self._heard[slots] = 0
        self.gate.window.completed(*self.timers.completed(slots, now, in_time, told))
        if self._some_halves:
            self._parts[slots] = 0
        self._advance(collective, answers)
        if again is not None:
            self.outgoing.flags[self._row[again]] |= np.uint8(_RETRANSMISSION)

    def _advance(self, collective: Collective, answers: Answers) -> None:
        """Start the next rounds of slots that have a result."""
        next_blocks = answers.header[NEXT_BLOCK]
        over = next_blocks == NO_BLOCK
        if np.count_nonzero(over):
            self._end_stripes(collective, answers.slots[over])
            answers = answers.only(~over)
            if not len(answers):
                return
            next_blocks = answers.header[NEXT_BLOCK]
        slots = answers.slots
        blocks = next_blocks.astype(np.int64)
        exponents = answers.header[SLOT_FORMAT_EXPONENT].astype(np.uint8)  # the lowest byte
        announced = self._announced[slots]
        mine = blocks == announced
        following = collective.next_nonzero[blocks + collective.stripes]
        if np.count_nonzero(mine) != len(mine):
            following = np.where(mine, following, announced)
        self._announced[slots] = following
        self._block[slots] = blocks
        self._exponent[slots] = exponents
        nonfinite = exponents == NONFINITE_EXPONENT
        if collective.course is not None and mine.any():
            collective.course.made()
        flags = mine.astype(np.uint32)  # PAYLOAD is 1
        if np.count_nonzero(nonfinite):
            flags = np.where(nonfinite, np.uint32(_NONFINITE), flags)
        self.counts.blocks_announced += len(slots)
        self._contribute(collective, slots, blocks, following, flags)

    def _open(self, collective: Collective, slots: Indices) -> None:
        """Start a collective's stripes in slots that are free."""
        if collective.course is not None:
            collective.course.open()
        if self._native is not None:
            stream = self._stream(collective)
            self._native.streams[slots] = stream
            if stream:
                self._open_natively(self._native, stream, slots)
                return
        self._owner[slots] = collective.sequence
        self._count[slots] = collective.count
        self._tag[slots] = collective.tag
        self._format[slots] = collective.format
        self._block[slots] = _OPENING
        self.timers.opening(slots)
        stripes = (slots - collective.offset) % collective.slots
        self.gate.enter(slots, collective.sequence, stripes)
        announced = collective.next_nonzero[stripes]
        self._announced[slots] = announced
        none = np.full(len(slots), NO_BLOCK)
        self._contribute(collective, slots, none, announced, np.zeros(len(slots), np.uint32))
        self._awaited[slots] = 0  # the answer has no sums, so is not plain

    def _open_natively(self, native: NativeSlots, stream: int, slots: Indices) -> None:
        native.open(stream, slots)
        self.timers.some_open()
        self._count_sent(len(slots), 0)
        self._sendable.append(slots * _SHAPES + _EMPTY)

    def _end_stripes(self, collective: Collective, slots: Indices) -> None:
        self._expected[slots] = _IDLE
        self.gate.leave(slots)
        self._awaited[slots] = 0
        self.timers.stop(slots)
        openings: dict[int, list[int]] = {}
        for slot in slots.tolist():
            if self._queues[slot]:
                openings.setdefault(self._queues[slot].popleft().sequence, []).append(slot)
                self._behind[slot] = bool(self._queues[slot])
        for sequence, free in openings.items():
            self._open(self._collectives[sequence], np.array(free))
        collective.remaining -= len(slots)
        if not collective.remaining:
            self._finish(collective)

    def _finish(self, collective: Collective) -> None:
        """All stripes of a collective are over."""
        del self._collectives[collective.sequence]
        if not self._collectives:
            self._earliest_deadline = np.inf
            self.gate.window.idle()
        if collective.overflowed is None:
            self.counts.collectives += collective.counted
            collective.finish()
        else:
            self.counts.overflows += 1
            collective.finish(overflow_error(collective, collective.overflowed))

    def _contribute(
        self,
        collective: Collective,
        slots: Indices,
        blocks: Indices,
        announced: Indices,
        flags: npt.NDArray[np.uint32],
    ) -> None:
        """Make the frames of the slots' next rounds, about `blocks`."""
        rounds = self._next_round[slots]
        self._next_round[slots] = rounds + np.uint32(1)
        self._expected[slots] = rounds
        header = np.zeros((AGG_BYTES // 4, len(slots)), np.uint32)
        header[KIND_FLAGS_RANK] = flags << 16 | self._first_word
        header[JOB] = self._job
        header[SLOT_FORMAT_EXPONENT] = (
            self._slot_words[slots] | collective.format << 8 | collective.exponents[announced]
        )
        header[ROUND] = rounds
        header[BLOCK] = blocks
        header[NEXT_BLOCK] = np.where(announced == collective.none, NO_BLOCK, announced)
        header[TAG] = collective.tag
        filled = flags == _HAS_PAYLOAD
        rows = slots * _SHAPES + filled
        self.outgoing.header[rows] = header.T
        header[KIND_FLAGS_RANK] = self._plain
        self._awaited[slots] = header.T
        self._row[slots] = rows
        self.timers.stop(slots)  # until it is sent
        number = int(np.count_nonzero(filled))
        if number == len(rows):
            self._codec(collective).encode(collective, blocks, self._exponent[slots], rows)
        elif number:
            exponents = self._exponent[slots[filled]]
            self._codec(collective).encode(collective, blocks[filled], exponents, rows[filled])
        self._count_sent(len(rows), number)
        self._sendable.append(rows)

    def _count_sent(self, frames: int, filled: int) -> None:
        self.counts.blocks_sent += filled
        self.counts.empty_sent += frames - filled
        self.counts.frames_sent += frames
        self.counts.bytes_sent += (
            filled * PAYLOAD_FRAME_BYTES + (frames - filled) * EMPTY_FRAME_BYTES
        )

    # -- When nothing comes ------------------------------------------------------------------------

    def _by_class(self, slots: Indices) -> list[Indices]:
        """Tell urgent slots from others: what one class waits for says nothing of the other."""
        if self._urgent_from == self._slots:
            return [slots]
        urgent = slots >= self._urgent_from
        return [slots[urgent], slots[~urgent]]

    def _worth_repeating(self, slots: Indices, now: float) -> Indices:
        """Return which of the slots whose timers have run out are to be repeated.

        All of them, unless nothing at all comes: then a rank is late, rather than a frame lost in
        each slot. So one frame asks for all, the next time two do, then four. They are the first
        ones in the order that all ranks have, so that all ask for the same; see docs/protocol.md,
        "When nothing comes".
        """
        if len(slots) == 1 or not self._quiet(now):
            return slots
        in_order = self.gate.in_order(slots)
        tries = int(self.timers.tries[in_order[0]])
        number = 1 << min(tries, _DOUBLINGS)
        self.timers.hold(in_order[number:], tries, now)
        return in_order[:number]

    def _quiet(self, now: float) -> bool:
        """Tell whether nothing has come for so long that it is not single frames that are lost."""
        return now - self.heard_switch_at >= self.timers.timeout.seconds * _QUIET

    def _repeat(self, slots: Indices) -> None:
        """Send the slots' last frames again.

        Those without payload are padded from now on, so that a result fits into them; see
        docs/protocol.md, "Halves and padding". The round that opens a stripe has no lanes to fit.
        """
        bare = self._bare(slots)
        if bare.any():
            self._pad(slots[bare])
        rows = self._row[slots]
        self.outgoing.flags[rows] |= np.uint8(
            _RETRANSMISSION | _TELL_ALL if self._asks_for_all else _RETRANSMISSION
        )
        self.timers.repeated(slots)
        for collective, which in self._by_owner(slots):
            if collective.course is not None:
                collective.course.repeated(len(slots) if which is None else len(which))
        self.counts.retransmissions += len(slots)
        self.counts.frames_sent += len(slots)
        self.counts.bytes_sent += int(self.outgoing.lengths[rows].sum())
        self._sendable.append(rows)

    def _repeat_with_room(self, statuses: Answers) -> None:
        """Send contributions without payload again, padded, as a switch of a tree has asked.

        What has room already was padded or has payload, and if it is lost its timer repeats it.
        No timer has a part in this, so the frame does not say so.
        """
        slots = np.unique(statuses.slots[self._expected[statuses.slots] == statuses.header[ROUND]])
        slots = slots[self._bare(slots)]
        if len(slots):
            rows = self._pad(slots)
            self.timers.stop(slots)  # until it is sent
            self.counts.padded += len(slots)
            self.counts.frames_sent += len(slots)
            self.counts.bytes_sent += len(slots) * PAYLOAD_FRAME_BYTES
            self._sendable.append(rows)

    def _bare(self, slots: Indices) -> npt.NDArray[np.bool_]:
        """Tell whose contributions have no room for a result with lanes."""
        bare: npt.NDArray[np.bool_] = self._row[slots] % _SHAPES == _EMPTY
        bare &= self._block[slots] != _OPENING
        return bare

    def _pad(self, slots: Indices) -> Indices:
        """Make room in contributions that have none; return their rows."""
        padded = slots * _SHAPES + _PADDED
        self.outgoing.header[padded] = self.outgoing.header[self._row[slots]]
        self.outgoing.flags[padded] |= np.uint8(_PADDED_FLAG)
        self._row[slots] = padded
        return padded

    def _left_error(self, ranks: tuple[int, ...], collective: Collective) -> WorkerLostError:
        return WorkerLostError(
            f"{collective.description} cannot be completed: {describe_ranks(ranks)} left the job "
            "without taking part in it",
            ranks=ranks,
        )

    def _timeout_error(self, collective: Collective, now: float) -> P4ReduceError:
        seconds = now - collective.started
        what = f"{collective.description} is not complete after {seconds:.3g} s"
        waiting = np.flatnonzero((self._owner == collective.sequence) & (self._expected != _IDLE))
        if not len(waiting):
            waiting = np.flatnonzero(self._expected != _IDLE)
            what += ", still behind earlier ones"
        for slot in waiting[self._heard[waiting] != 0].tolist():
            level = self._levels[self._level[slot]]
            missing = level.missing(int(self._heard[slot]))
            if missing:
                return P4ReduceTimeoutError(
                    f"{what}: slot {slot} waits for {level.describe(missing)}, which the switch "
                    f"{level.switch + ' ' if level.switch else ''}has not heard",
                    missing=level.ranks(missing),
                    slot=slot,
                    seconds=seconds,
                )
        # In a tree all questions of a rank may go up, so that its switch never answers by itself:
        # then what its parent says is above.
        tries = int(self.timers.tries[waiting].max())
        if self.heard_switch_at < collective.started and tries >= _TRIES_TO_TELL:
            return SwitchUnreachableError(
                f"{what}: the switch has answered nothing, though asked {tries} times again "
                f"(slot {int(waiting[0])})"
            )
        return P4ReduceTimeoutError(
            f"{what}: slot {int(waiting[0])} has no result, and the switch has not said yet "
            "who is missing",
            slot=int(waiting[0]),
            seconds=seconds,
        )
