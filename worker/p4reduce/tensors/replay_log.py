# SPDX-License-Identifier: Apache-2.0
"""The replay log: inputs of collectives that may have to be repeated because a rank may need them.

The sums in a lost switch are lost. The ranks then repeat, on the switch that comes back, every
collective whose result one of them lacks. Ranks that have the result take part for the others. So
each input is copied when its collective starts, because the caller may write to the array once the
call is over, and in place the result overwrites it. The copy is kept until all ranks have the
result.

**When all ranks have it.** A stripe of collective C ended in slot s with round r. A rank sends for
round r+1 in s only when it has the result of r (docs/protocol.md, "Why two versions are enough").
So when a later collective that used s as well is over on this rank, every rank has that stripe of
C. When that holds for all slots of C, every rank has C.

**How much that is.** A collective of as many blocks as there are slots, or more, uses all slots, so
it releases all before it when it is over. Besides those in flight, at most one of this size is
kept. Smaller ones take one block per slot, in turn through the slots, so those kept have at most
two blocks per slot. An urgent collective has slots of its own, which only later urgent ones use
again. If these do not come, its inputs are released with the next heartbeat, when the controller
says that all ranks have the result.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from p4reduce.errors import P4ReduceError
from p4reduce.tensors.blocks import Array, BlockMemory, BlockRows, Indices, Piece
from p4reduce.tensors.copy_pool import CopyPool
from p4reduce.tensors.stream import Collective

_PRUNE_BEYOND = 8  # entries; looking for those to release is not worth it for fewer


class InputSnapshot:
    """A copy of the blocks of an input that are not all zeros. Others are never sent.

    Args:
        collective: whose input is copied.
    """

    private = True

    def __init__(self, collective: Collective) -> None:
        source, count = collective.source, collective.count
        self.dtype = source.dtype
        self._count = count
        self._rows: Array
        self._places: Indices | None = None  # where each block is among the rows; None: there
        self._kept, collective.copied = collective.copied, None
        if self._kept is not None:
            self._rows = self._kept.rows
            return
        blocks = np.arange(count)
        if not collective.is_full:
            nonzero = collective.next_nonzero[:count] == blocks
            blocks = np.flatnonzero(nonzero)
        self._rows = np.empty((len(blocks), collective.format.lanes), self.dtype)
        if len(blocks):
            source.gather(blocks, self._rows)
        if not collective.is_full:
            self._places = np.cumsum(nonzero) - 1

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """The copy's memory in bytes."""
        return self._rows.nbytes + (0 if self._places is None else self._places.nbytes)

    def memory(self) -> BlockMemory:
        """Return the memory, as `blocks.BlockMemory` describes."""
        rows = self._rows
        return BlockMemory([Piece(len(rows), len(rows), 0, rows.ctypes.data)], self._places)

    def gather(self, blocks: Indices, rows: Array) -> None:
        """Copy blocks, none of which is all zeros, into rows of the same dtype."""
        places = blocks if self._places is None else self._places[blocks]
        self._rows.take(places, axis=0, out=rows, mode="clip")


@dataclass(slots=True)
class _ReplayEntry:
    original: Collective  # what the caller waits for
    running: Collective  # the same, or its latest repetition for others
    snapshot: BlockRows


class ReplayLog:
    """The collectives of a communicator that are under way or may be needed again.

    Thread-safe.

    Args:
        lock: the owner's, which may be taken again by the thread that has it.

    Attributes:
        copy_pool: what the copies of released collectives have left, for the next ones.
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self.copy_pool = CopyPool(self.release)
        self._lock = lock or threading.RLock()
        self._entries: list[_ReplayEntry] = []  # in order
        self._next = 0
        self._prune_at = _PRUNE_BEYOND

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """The memory of all copies, in bytes."""
        snapshots = (entry.snapshot for entry in self._entries)
        return sum(one.nbytes for one in snapshots if isinstance(one, InputSnapshot))

    def add(self, collective: Collective) -> None:
        """Keep a copy of a collective's input. Call it before the collective runs, and in order.

        For a large input, unneeded copies are released first.
        """
        large = collective.stripes == collective.slots
        with self._lock:
            if large or len(self._entries) >= self._prune_at:
                self.release()
                self._prune_at = max(2 * len(self._entries), _PRUNE_BEYOND)
            kept = self.keep(collective)
            self._entries.append(_ReplayEntry(collective, collective, kept))
            self._next = collective.sequence + 1

    def keep(self, collective: Collective) -> BlockRows:
        """Return a collective's input in a form that its caller cannot change."""
        return collective.source if collective.source.private else InputSnapshot(collective)

    def release(self) -> None:
        """Release what every rank has; see the module's text.

        Only of the first ones: all ranks have to run again the same, from one on to the last.
        """
        with self._lock:
            first = len(self._entries)
            later = 0  # a bit for each slot that a later, complete collective has used
            for index in reversed(range(len(self._entries))):
                running = self._entries[index].running
                used = _slots_of(running)
                if not running.done() or used & ~later:
                    first = index
                if running.done():
                    later |= used
            del self._entries[:first]

    @property
    def in_flight(self) -> list[Collective]:
        """The collectives that callers wait for, in order."""
        with self._lock:
            return [entry.original for entry in self._entries if not entry.original.done()]

    @property
    def completed(self) -> int:
        """The number of the first collective whose result this rank lacks.

        It has all earlier results, and perhaps later ones.
        """
        with self._lock:
            return min((one.sequence for one in self.in_flight), default=self._next)

    def running(self, number: int) -> Collective | None:
        """Return the present form of a collective; None if it was not called yet.

        Released ones are never asked for.
        """
        with self._lock:
            entries = (one for one in self._entries if one.original.sequence == number)
            return next((one.running for one in entries), None)

    def since(self, number: int) -> list[Collective]:
        """Return the present forms of a collective and of all later ones."""
        with self._lock:
            return [one.running for one in self._entries if one.original.sequence >= number]

    def forget(self, before: int) -> None:
        """Release all earlier collectives, because all ranks have their results."""
        with self._lock:
            self._entries = [one for one in self._entries if one.original.sequence >= before]

    def replay(self, first: int) -> list[Collective]:
        """Return the collectives to run again on a fresh switch, in order, and release the others.

        Args:
            first: the number of the first one that any rank lacks.

        Raises:
            P4ReduceError: an input was released, so another rank's count is wrong.
        """
        with self._lock:
            self.forget(first)
            kept = self._entries[0].original.sequence if self._entries else self._next
            if kept != first:
                raise P4ReduceError(
                    f"collective {first} is to be repeated, but this rank keeps the inputs from "
                    f"collective {kept} on only, as all ranks had the results of those before"
                )
            for entry in self._entries:
                if entry.original.done():
                    entry.running = entry.original.repetition(entry.snapshot)
                else:
                    entry.running = entry.original
                    entry.original.restart(entry.snapshot)
            return [entry.running for entry in self._entries]

    def fail(self, error: P4ReduceError) -> None:
        """End all collectives, and release everything."""
        with self._lock:
            for entry in self._entries:
                entry.original.finish(error)
            self._entries.clear()


def _slots_of(collective: Collective) -> int:
    """Return a bit for each slot that it goes through."""
    everything = (1 << collective.slots) - 1
    turned = ((1 << collective.stripes) - 1) << (collective.offset - collective.first_slot)
    return ((turned | turned >> collective.slots) & everything) << collective.first_slot
