# SPDX-License-Identifier: Apache-2.0
"""The worker's side of the protocol: docs/protocol.md, "What a worker does".

`SlotMachine` gives the engine in C (`csrc/worker/worker.h`) its memory, collectives and frames, and
turns its output into results, errors and statistics. Only C decides what to do with a frame, and
when to repeat one. `p4reduce.reference` is the same in readable form.
"""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from p4reduce_native.errors import NativeUnavailableError

from p4reduce.errors import P4ReduceError
from p4reduce.machine_code import CONSTANTS, COUNTED, VISIT, Library, engine_library
from p4reduce.protocol.native_iteration import LinkLock, NativeIteration
from p4reduce.protocol.slot_state import IDLE, SHAPES, SlotState
from p4reduce.statistics import Counts, RoundTrips
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.continuing import Messages, Rounds
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.endings import late_error, left_error, overflow_error
from p4reduce.tensors.native_stream import NativeStream
from p4reduce.tensors.stream import Collective
from p4reduce.transport.base import Transport, without_machine_code
from p4reduce.wire.answers import FIRST, SECOND, own_answers
from p4reduce.wire.format import (
    AGG_OFFSET,
    PAYLOAD_BYTES,
    PAYLOAD_FRAME_BYTES,
    PAYLOAD_OFFSET,
    Endpoint,
    Flag,
    FrameKind,
    header_bytes,
    template,
)
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.rank_sets import Level, one_switch

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]

FEW = 8
"""So many ranks at a switch all ask by themselves, which costs little and is soonest."""

_LOCAL_FLOOR = 0.1  # seconds; longer than a process waits for a core on a busy machine
_MESSAGE = slice(AGG_OFFSET, PAYLOAD_FRAME_BYTES)  # of a frame: its header and lanes
# What a visit is for; 1 to 3 are parts of sums (`wire.answers`).
_READ, _ZEROS = CONSTANTS["P4R_READ"], CONSTANTS["P4R_ZEROS"]
_NONFINITE = CONSTANTS["P4R_NONFINITE"]
_LEFT = CONSTANTS["P4R_RANKS_LEFT"]  # else, and without a deadline, the ranks do not agree
_DEADLINE = CONSTANTS["P4R_DEADLINE"]


def _messages(frames: FrameBuffer, rows: Indices) -> Messages:
    """Return aggregation headers, each with its lanes, or with zeros if it has none."""
    messages: Messages = frames.frames[rows, _MESSAGE]
    bare = (frames.records["flags"][rows] & Flag.PAYLOAD) == 0
    messages[bare, PAYLOAD_OFFSET - AGG_OFFSET :] = 0
    return messages


def _library() -> Library:
    try:
        return engine_library()
    except NativeUnavailableError as error:
        raise without_machine_code(error) from None


class SlotMachine:
    """Runs a job's collectives through its slots.

    Attributes:
        outgoing: the frames that can be sent.
        kept: the last result of each slot.
        state: of all slots.
        collectives: those under way, by number.
        broken: why no collective can be run any more, or None.
        in_dispute: whether the ranks do not agree, and `fail` has not ended the dispute yet.
        disputed: called when the ranks do not agree; must not wait, and see to it that `fail` ends
            the dispute soon. Until then nothing runs. None: it fails at once.

    Args:
        slots: how many the job has; all ranks have the same number.
        job: its incarnation id.
        rank: own.
        world_size: of the job.
        here: own addresses.
        switch: those of the switch.
        urgent: how many of the slots, the last ones, are for collectives of class 1, 2 and so on.
        levels: the switches that sum for this rank, its own first, then in a tree those above it.
            None: there is one, with all ranks on it.
        few: the most ranks at a switch that each ask for themselves; of more, one asks for all.
        library: the functions; None: those that are installed.

    Raises:
        ConfigurationError: there is no machine code here.
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
        few: int = FEW,
        library: Library | None = None,
    ) -> None:
        self._library = library or _library()
        self._levels = tuple(levels or one_switch(world_size))
        self._world_size = world_size
        self._job = job
        self.broken: P4ReduceError | None = None
        self.disputed: Callable[[Dispute], object] | None = None
        self.in_dispute = False
        self.collectives: dict[int, Collective] = {}
        self._stripes_given = [0] * (1 + len(urgent))  # to each class
        self._left: tuple[int, ...] = ()
        self._visiting_failed: BaseException | None = None
        # By a weak reference: `state` has a NumPy array over the structure that holds the callback,
        # and the garbage collector finds no cycle that goes through one.
        visit = weakref.WeakMethod(self._visit_blocks)
        self._visit = VISIT(lambda *what: visit()(*what))  # type: ignore[misc]
        self.outgoing = FrameBuffer(slots * SHAPES)
        self.kept = FrameBuffer(slots)
        self._origin = np.zeros(slots, np.uint32)  # rounds before those of this life of the job
        at_switch = self._levels[0].own_ranks
        many = len(at_switch) > few
        wanted, mask = own_answers(here, switch, rank, job)
        self.state = SlotState(
            slots,
            urgent,
            len(self._levels),
            self.outgoing,
            self.kept,
            place=at_switch.index(rank) if many else None,
            job=job,
            rank=rank,
            asks_for_all=many and rank == at_switch[0],
            everybody=self._levels[0].missing(0),
            own_bit=self._levels[0].bits((rank,)),
            visit=self._visit,
        )
        self._shared = self.state.structure
        self._shared.wanted[:] = wanted.tolist()
        self._shared.mask[:] = mask.tolist()
        self._address = self.state.address
        self._out = np.zeros(slots, np.int64)
        self._scratch = ctypes.byref(ctypes.c_uint32())
        self._fill_templates(here, switch, rank, slots)

    def _fill_templates(self, here: Endpoint, switch: Endpoint, rank: int, slots: int) -> None:
        header = header_bytes(kind=FrameKind.CONTRIBUTE, rank=rank, job=self._job)
        empty = template(here, switch, header)
        filled = template(here, switch, header, bytes(PAYLOAD_BYTES))
        for slot in range(slots):
            for shape, frame in enumerate((empty, filled, filled)):
                self.outgoing.put(slot * SHAPES + shape, frame)

    # -- Figures -------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """The statistics so far."""
        counted = self._shared.counts
        return Counts(**{name: getattr(counted, name) for name in COUNTED})

    @property
    def round_trips(self) -> RoundTrips:
        """The measured round trips."""
        self.state.trips.count = self._shared.round_trip_count
        return self.state.trips

    @property
    def timeout_seconds(self) -> float:
        """The present time after which a contribution is repeated."""
        return float(self._shared.timeout.seconds)

    @property
    def window_size(self) -> int:
        """The present number of slots that may have a contribution in flight."""
        return int(self._shared.window)

    @window_size.setter
    def window_size(self, size: int) -> None:
        self._shared.window = size

    @property
    def heard_switch_at(self) -> float:
        """When the switch last answered; -inf if never."""
        return float(self._shared.heard_switch_at)

    @property
    def next_due(self) -> float:
        """When the next timer or deadline runs out; infinite if there is none."""
        return float(self._library.next_due(self._address, self._scratch))

    @property
    def next_sequence(self) -> int:
        """The number of the first collective that has not begun."""
        return int(self._shared.next_sequence)

    @property
    def idle(self) -> bool:
        """Whether all collectives are complete."""
        return not self.collectives

    def use_local_floor(self) -> None:
        """Set timeouts for a transport within this machine, which loses no frame.

        What does not come is only late.
        """
        for timeout in (self._shared.timeout, self._shared.opening_timeout):
            timeout.floor = _LOCAL_FLOOR
            timeout.seconds = max(timeout.seconds, _LOCAL_FLOOR)

    def go_on_counting(self, before: Counts, round_trips: RoundTrips) -> None:
        """Continue from the counts and measurements of an earlier life of the job."""
        for name in COUNTED:
            setattr(self._shared.counts, name, getattr(before, name))
        self.state.trips.go_on_from(round_trips)
        self._shared.round_trip_count = self.state.trips.count

    # -- Frames --------------------------------------------------------------------------------

    def take_sendable(self) -> Indices:
        """Return the rows of `outgoing` to send now. The caller then calls `sent`."""
        if not self._shared.queued_count and not self._shared.holds_back:
            return self._out[:0]
        count = self._library.release_frames(self._address, self._out.ctypes.data)
        rows: Indices = self._out[:count].copy()
        return rows

    def sent(self, rows: Indices, now: float) -> None:
        """Start the timers of rows that the transport has accepted."""
        rows = np.ascontiguousarray(rows, np.int64)
        self._library.sent(self._address, rows.ctypes.data, len(rows), now)

    def receive(self, buffer: FrameBuffer, count: int, now: float) -> None:
        """Process received frames: the first `count` rows of a buffer."""
        lengths = buffer.lengths.ctypes.data
        self._library.receive(self._address, buffer.rows_address, lengths, count, now)
        self.take_events(now)

    def expire(self, now: float) -> None:
        """Repeat the frames whose timers ran out. If a deadline has passed, end everything."""
        self._library.expire(self._address, now)
        self.take_events(now)

    # -- Collectives ---------------------------------------------------------------------------

    def submit(self, collective: Collective) -> None:
        """Queue a collective behind those of its class. All ranks do so in the same order."""
        if self._left and self.broken is None and not self.in_dispute:
            self.fail(left_error(collective, self._left))
        if self.broken is not None:
            collective.finish(self.broken)
            return
        stream = self._take_in(collective)
        if self.in_dispute:
            self._shared.next_sequence = collective.sequence + 1
            return
        self._library.submit(self._address, stream.address, time.monotonic())

    def _take_in(self, collective: Collective) -> NativeStream:
        """Take in a collective, give it slots if it has none; return what C knows it by."""
        first, number = collective.first_slot, collective.slots
        if not collective.placed:
            given = self._stripes_given[collective.priority]
            collective.offset = first + given % number
            self._stripes_given[collective.priority] = given + collective.stripes
            collective.placed = True
        stream = collective.stream = NativeStream(collective, self._world_size)
        if stream.source is None or stream.target is None:
            self.state.make_room_to_visit()
        self.collectives[collective.sequence] = collective
        self.state.make_room_for(len(self.collectives))
        return stream

    def _visit_blocks(
        self, sequence: int, what: int, blocks_at: int, count: int, rows_at: int
    ) -> None:
        """Read or write blocks that only Python can reach: `p4r_visit`."""
        try:
            collective = self.collectives[sequence]
            at = ctypes.cast(blocks_at, ctypes.POINTER(ctypes.c_int64))
            blocks = np.ctypeslib.as_array(at, (count,))
            if what in (_ZEROS, _NONFINITE):
                if what == _ZEROS or collective.dtype.kind == "f":
                    collective.target.fill(blocks, 0 if what == _ZEROS else np.nan)
                return
            lanes = collective.format.lanes
            half = lanes // 2
            begin, end = half if what == SECOND else 0, half if what == FIRST else lanes
            kind = ctypes.c_uint8 * (count * (end - begin) * collective.dtype.itemsize)
            memory = memoryview(kind.from_address(rows_at)).cast("B")
            rows = np.frombuffer(memory, collective.dtype).reshape(count, end - begin)
            if what == _READ:
                collective.source.gather(blocks, rows)
            else:
                collective.target.scatter(blocks.copy(), rows, slice(begin, end))
        except BaseException as problem:  # nothing can be raised through C
            self._visiting_failed = self._visiting_failed or problem

    def fail(self, error: P4ReduceError) -> None:
        """End all collectives with an error. No further sums are possible."""
        if self.broken is None:
            self.broken = error
        self.in_dispute = False
        self._library.stop(self._address)
        while self.collectives:
            collective = next(iter(self.collectives.values()))
            self._close(collective, error)
            self.collectives.pop(collective.sequence, None)

    def ranks_left(self, ranks: tuple[int, ...], now: float) -> None:
        """Note ranks that have left. Sums that lack their contributions cannot complete.

        Complete results can still be fetched, so the switch is asked which ranks are missing.
        """
        if ranks != self._left:
            self._left = ranks
            self.state.left[:] = [level.bits(ranks) for level in self._levels]
            self._library.expire_timers(self._address, False, now)

    def resume(self, now: float) -> None:
        """Continue over a new transport. Frames in flight on the old one count as lost."""
        self._library.expire_timers(self._address, True, now)

    def postpone(self, until: float) -> None:
        """Let no collective reach its deadline before `until`."""
        for collective in list(self.collectives.values()):
            collective.deadline = max(collective.deadline, until)
            if (stream := collective.stream) is not None:  # its caller may just have ended it
                stream.postpone(collective.deadline)

    # -- After the loss of the switch: docs/protocol.md, "Continuing" ---------------------------

    @property
    def finished(self) -> Rounds:
        """How many results each slot has had, in all lives of the job, modulo 2^32."""
        state = self.state
        rounds = np.where(state.expected == IDLE, state.next_round, state.expected)
        return rounds.astype(np.uint32) + self._origin

    @property
    def awaiting(self) -> Flags:
        """Whether each slot waits for a result."""
        waiting: Flags = self.state.expected != IDLE
        return waiting

    def results(self, slots: Indices) -> Messages:
        """Return the last results of slots."""
        return _messages(self.kept, slots)

    def contributions(self, slots: Indices) -> Messages:
        """Return the contributions of slots that wait for a result."""
        return _messages(self.outgoing, self.state.row[slots])

    def take_results(self, slots: Indices, results: Messages, now: float) -> None:
        """Take the awaited results of different slots from elsewhere than the switch.

        Raises:
            P4ReduceError: one is not about the round that its slot waits for: a bug.
        """
        if not len(slots):
            return
        awaited = self.state.expected[slots]
        frames = FrameBuffer(len(slots))
        frames.frames[:, _MESSAGE] = results
        frames.records["slot"], frames.records["round"] = slots, awaited
        frames.records["flags"] |= np.uint8(Flag.RETRANSMISSION)  # no sample of a round trip
        self._library.take_handed(self._address, frames.rows_address, len(slots), now)
        stuck = slots[self.state.expected[slots] == awaited]
        if len(stuck) and not self._shared.trouble:
            raise P4ReduceError(
                f"slot {stuck[0]} waits for another result than the one it is given: this rank's "
                "rounds are not those of the others"
            )
        self.take_events(now)

    def continue_from(self, before: SlotMachine, newest: Rounds, now: float) -> None:
        """Take over all that another machine has under way. It is of no use afterwards.

        Args:
            before: of the same rank in an earlier life of the job, with as many slots.
            newest: how many results the rank that is furthest has had of each slot.
            now: the present time.
        """
        state, old = self.state, before.state
        waiting = before.awaiting
        behind = waiting & (before.finished != newest)
        first = state.next_round.copy()
        self._origin[:] = newest - first
        for name in ("block", "announced", "exponent", "row", "owner", "order", "opening"):
            getattr(state, name)[:] = getattr(old, name)
        rounds = first - behind.astype(np.uint32)
        state.expected[:] = np.where(waiting, rounds.astype(np.int64), IDLE)
        state.next_round[:] = first + (waiting & ~behind)
        rows = old.row[waiting]
        self.outgoing.frames[rows, _MESSAGE] = before.outgoing.frames[rows, _MESSAGE]
        headers = self.outgoing.records
        headers["job"][rows], headers["round"][rows] = self._job, state.expected[waiting]
        headers["flags"][rows] &= ~np.uint8(Flag.RETRANSMISSION | Flag.TELL_ALL)
        self.kept.frames[:] = before.kept.frames
        self._stripes_given[:] = before._stripes_given
        self._shared.next_sequence = before.next_sequence
        self.go_on_counting(before.counts, before.round_trips)
        for collective in list(before.collectives.values()):
            if not collective.remaining:
                block = collective.overflowed  # an exception has cut its caller off
                error = None if block is None else overflow_error(collective, block)
                self._close(collective, error)
            elif collective.sequence < before.next_sequence:
                self.collectives[collective.sequence] = collective
                collective.stream.taken_over(now)
        before.collectives.clear()
        self.state.make_room_for(len(self.collectives))
        self.state.relink({n: one.stream.address for n, one in self.collectives.items()})
        if any(not (one.stream.source and one.stream.target) for one in self.collectives.values()):
            self.state.make_room_to_visit()
        self._library.resume(self._address, now)

    # -- The loop ------------------------------------------------------------------------------

    def iteration(self, transport: Transport, lock: LinkLock | None = None) -> NativeIteration:
        """Return the loop that runs these slots over a transport."""
        number = len(self._out)
        return NativeIteration(self._library, self._address, number, self.outgoing, transport, lock)

    def prepare(self, collective: Collective) -> int | None:
        """Accept a collective that the waiting thread will run itself.

        Call it only while nothing is in flight.

        Returns:
            The address of its stream in C; None if it must be submitted instead.
        """
        if self.broken is not None or self._left or not self.idle:
            return None
        stream = self._take_in(collective)
        if stream.source and stream.target:
            return stream.address
        del self.collectives[collective.sequence]  # blocks that only Python can reach
        return None

    def completed_by_caller(self, collective: Collective) -> None:
        """Note that a caller has completed its collective. C has counted it."""
        self.collectives.pop(collective.sequence, None)
        self._close(collective)

    # -- What has happened ---------------------------------------------------------------------

    def take_events(self, now: float) -> None:
        """End complete collectives; if C has found an error, end all."""
        shared = self._shared
        if shared.over_count:
            over = self.state.over[: shared.over_count].tolist()
            shared.over_count = 0
            for sequence in over:
                collective = self.collectives.pop(sequence)
                try:
                    self._finish(collective)
                except BaseException:
                    self.collectives[sequence] = collective  # where `fail` finds it
                    raise
        if self._visiting_failed is not None:
            problem, self._visiting_failed = self._visiting_failed, None
            raise problem
        if shared.trouble:
            trouble, shared.trouble = shared.trouble, 0
            if self.broken is None and not self.in_dispute:
                self._stopped_by(trouble, now)

    def _finish(self, collective: Collective) -> None:
        """End a collective whose stripes are all over, with an error if a sum overflowed."""
        if collective.overflowed is None:
            self._shared.counts.collectives += collective.counted
            self._close(collective)
        else:
            self._shared.counts.overflows += 1
            self._close(collective, overflow_error(collective, collective.overflowed))

    def _close(self, collective: Collective, error: P4ReduceError | None = None) -> None:
        """End a collective that C has no more to do with."""
        collective.stream = None  # it holds what C has read and written
        collective.finish(error)

    def _stopped_by(self, trouble: int, now: float) -> None:
        """C has stopped: fail everything, or report a dispute."""
        shared = self._shared
        if trouble == _DEADLINE:
            late = self.collectives[shared.trouble_sequence]
            self.fail(self._late_error(late, now))
            return
        collective = self.collectives[int(self.state.owner[shared.trouble_slot])]
        if trouble == _LEFT:
            above = self._levels[shared.trouble_level]
            behind = set(above.ranks(shared.trouble_bits))
            left = tuple(rank for rank in self._left if rank in behind)
            self.fail(left_error(collective, left))
            return
        dispute = Dispute.of(collective, self.collectives.values())
        if self.disputed is None:
            self.fail(dispute.error)
            return
        self.in_dispute = True
        self._library.stop(self._address)
        self.disputed(dispute)

    def _late_error(self, late: Collective, now: float) -> P4ReduceError:
        state = self.state
        busy = state.expected != IDLE
        waiting = np.flatnonzero(busy & (state.owner == late.sequence))
        behind = not len(waiting)
        waiting = np.flatnonzero(busy) if behind else waiting
        heard = [
            (slot, self._levels[state.level[slot]], int(state.heard[slot]))
            for slot in waiting[state.heard[waiting] != 0].tolist()
        ]
        return late_error(
            late,
            now,
            heard=heard,
            slot=int(waiting[0]),
            tries=int(state.tries[waiting].max()),
            answered=self.heard_switch_at >= late.started,
            behind=behind,
        )
