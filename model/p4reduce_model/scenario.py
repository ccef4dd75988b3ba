# SPDX-License-Identifier: Apache-2.0
"""What is explored: jobs, their ranks, what these call, and what the results have to be.

Every block of every call of every rank has two lanes of its own, in which only that one block is
not zero: one in the first half of the lanes and one in the second. So a sum says by itself how
often it holds which contribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from p4reduce.protocol.slots import FEW
from p4reduce.tensors.blocks import Array
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.quantise import headroom
from p4reduce.wire.format import Format

FIRST_JOB = 7
"""Incarnation id of the first job; those after it count on."""

_LANES = Format.INT32.lanes // 2
_SHOWN = 4  # addends in a message

FIRST_SLOT = 3  # of the jobs, in the switch: not 0, so that forgetting it would show


@dataclass(frozen=True)
class Call:
    """An all-reduce of whole blocks, as all ranks call it.

    Attributes:
        blocks: how many; 0: the ranks only meet.
        zeros: the (rank, block) pairs that are all zeros.
        dtype: float32, or an integer type, which comes with a lane format of its own. Blocks of
            floats have different exponents.
        precision: of the lanes, where they are not those of the dtype.
        in_place: the result overwrites the input.
        differs: ranks that call it by another name, which is a mistake to be found.
        priority: its class.
    """

    blocks: int = 1
    zeros: frozenset[tuple[int, int]] = frozenset()
    dtype: str = "int32"
    precision: str | None = None
    in_place: bool = False
    differs: frozenset[int] = frozenset()
    priority: int = 0

    @property
    def floating(self) -> bool:
        return np.dtype(self.dtype).kind == "f"


@dataclass(frozen=True)
class Addend:
    """One rank's contribution to one block."""

    life: int
    rank: int
    call: int
    block: int

    def __str__(self) -> str:
        job = FIRST_JOB + self.life
        return f"rank {self.rank}'s block {self.block} of call {self.call} (job {job})"


@dataclass(frozen=True)
class Scenario:
    """A case to be explored.

    Attributes:
        name: of the case.
        ranks: how many each job has.
        leaves: how many switches they are at, each with as many of them; if there are several,
            another one is above them, which sums what they have summed.
        slots: how many each job has. All jobs have the same ones, one after the other.
        urgent: how many of these are for classes 1, 2 and so on.
        lives: the calls of each incarnation of the job, the first one's first.
        first_round: the number of the first round in each slot, to see it overflow.
        hesitant: frames wait in the worker for the transport to take them, one by one.
        wiped: a switch restarts, with all registers zero, between two incarnations.
        ends_wiped: one restarts during the last life, at any time, and nobody puts the job on it
            again: then only sums that are wrong are looked for.
        struck: the number of the switch that restarts; the first leaf is 0, and the root the last.
        recoveries: how often the switch is lost while the first one runs. The ranks themselves go
            on in the next incarnation then, and repeat what one of them lacks.
        settles: a rank may be lost in any state. Those that remain settle then, which must end each
            call on all of them or on none.
        timers: False: only frames are lost or late, and no timer ever runs out. The progress
            check has them in any case.
        windows: each rank's window takes on any size from 1 on at any time.
        batches: a worker may receive two frames at once.
        few: that many ranks at a switch all ask for themselves; of more the first one's repetitions
            have their STATUS sent to all.
    """

    name: str
    ranks: int
    slots: int
    lives: tuple[tuple[Call, ...], ...]
    leaves: int = 1
    first_round: int = 0
    hesitant: bool = False
    wiped: bool = False
    ends_wiped: bool = False
    struck: int = 0
    recoveries: int = 0
    settles: bool = False
    timers: bool = True
    windows: bool = False
    urgent: tuple[int, ...] = ()
    batches: bool = True
    few: int = FEW

    def but(self, **changes: object) -> Scenario:
        """A scenario that differs in some points."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def job(self, life: int) -> int:
        """The incarnation id of a life."""
        return FIRST_JOB + life

    @property
    def jobs(self) -> int:
        """How many incarnations there are."""
        return len(self.lives) + self.recoveries

    def calls(self, life: int) -> tuple[Call, ...]:
        """What the ranks call in a life."""
        return self.lives[0 if self.recoveries else life]

    # -- Contents ----------------------------------------------------------------------------

    @cached_property
    def lane(self) -> Mapping[Addend, int]:
        """The lane, of the first half, that each contribution has for itself."""
        lanes = {
            addend: number
            for number, addend in enumerate(
                Addend(life, rank, call, block)
                for life, calls in enumerate(self.lives)
                for call, what in enumerate(calls)
                for block in range(what.blocks)
                for rank in range(self.ranks)
            )
        }
        if len(lanes) > _LANES:
            raise ValueError(
                f"{self.name}: {len(lanes)} contributions, but only {_LANES} lanes to tell "
                "them apart"
            )
        return lanes

    def format(self, life: int, call: int) -> Format:
        """The lanes that a call's blocks travel in."""
        what = self.calls(life)[call]
        return lane_format(np.dtype(what.dtype), what.precision, self.ranks)

    def half(self, life: int, call: int) -> int:
        """Lanes in half a block of a call."""
        return self.format(life, call).lanes // 2

    def addend(self, life: int, rank: int, call: int, block: int) -> Addend:
        """A contribution; repeated in a later life, it is the same."""
        return Addend(0 if self.recoveries else life, rank, call, block)

    def is_zero(self, addend: Addend) -> bool:
        """Whether that block is all zeros."""
        return (addend.rank, addend.block) in self.calls(addend.life)[addend.call].zeros

    def value(self, addend: Addend) -> float:
        """What the block has in its own two lanes: 1, or a power of two if it is of floats."""
        if self.is_zero(addend):
            return 0
        call = self.calls(addend.life)[addend.call]
        # Different from rank to rank and from block to block, for a wrong exponent to show.
        return 2.0 ** ((3 * addend.rank + 5 * addend.block) % 11 - 5) if call.floating else 1

    def lane_value(self, addend: Addend) -> int:
        """The same as a lane, by the exponent that the ranks have to agree on."""
        call = self.calls(addend.life)[addend.call]
        value = self.value(addend)
        if not call.floating or not value:
            return int(value)
        largest = max(self.value(replace(addend, rank=rank)) for rank in range(self.ranks))
        exponent = int(np.float32(largest).view(np.uint32)) >> 23
        return round(math.ldexp(value, headroom(self.ranks) + 126 - exponent))

    def input(self, life: int, call: int, rank: int) -> Array:
        """What a rank calls it with; flat, of whole blocks."""
        what, half = self.calls(life)[call], self.half(life, call)
        rows = np.zeros((what.blocks, 2 * half), what.dtype)
        for block in range(what.blocks):
            addend = self.addend(life, rank, call, block)
            rows[block, [self.lane[addend], self.lane[addend] + half]] = self.value(addend)
        return rows.reshape(-1)

    def result(self, life: int, call: int) -> Array | None:
        """What every rank must get; None: an error, as the ranks do not call the same."""
        if self.calls(life)[call].differs:
            return None
        inputs = [self.input(life, call, rank) for rank in range(self.ranks)]
        total: Array = np.sum(inputs, axis=0, dtype=inputs[0].dtype)
        return total

    def addends(self, life: int, call: int, lanes: Array) -> str:
        """Say which contributions a block holds, or one half of it, as far as its lanes tell.

        `life` and `call` are what it should be a block of.
        """
        half = self.half(life, call)
        owners = {lane: addend for addend, lane in self.lane.items()}
        words = []
        for lane in np.flatnonzero(lanes):
            if lane >= half and lanes[lane - half] == lanes[lane]:
                continue  # said already
            addend, value = owners.get(int(lane) % half), lanes[lane]
            if addend is None:
                words.append(f"{value:g} in lane {lane}, which is nobody's")
                continue
            one = self.value(addend) if lanes.dtype.kind == "f" else self.lane_value(addend)
            times = f"{value / one:g} x" if one else f"{value:g} in the lane of"
            words.append(f"{times} {addend}")
        shown = [*words[:_SHOWN], f"and {len(words) - _SHOWN} more"][: len(words)]
        return ", ".join(shown) or "nothing"
