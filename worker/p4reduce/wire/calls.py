# SPDX-License-Identifier: Apache-2.0
"""The description of a call on which all ranks must agree, and its fingerprint on the wire.

The fingerprint is the frame's tag. The switch sets MISMATCH where tags of a round differ, and every
rank then raises `MismatchError`.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from p4reduce.wire.format import FLOAT_LANES, Format


class Operation(IntEnum):
    """The reductions."""

    SUM = 0
    MEAN = 1


SUM = Operation.SUM
MEAN = Operation.MEAN


class Priority(IntEnum):
    """Classes of collectives with a name; see `MAX_CLASSES`."""

    BULK = 0
    URGENT = 1


MAX_CLASSES = 8
"""Classes of a job, 0 to 7. Each has slots of its own, and a higher one goes first."""


@dataclass(frozen=True)
class CallPart:
    """Consecutive blocks of a call that goes through several switches.

    Attributes:
        number: of the part, from 0.
        of: their number.
        first_block: of the whole call's.
    """

    number: int
    of: int
    first_block: int


@dataclass(frozen=True)
class Call:
    """One call of a collective, the same on all ranks.

    Attributes:
        routine: the communicator's method, without "_async".
        dtype: of the elements, by name.
        size: number of elements that the collective is about.
        operation: of those routines that reduce.
        root: of those that have one.
        name: given by the caller.
        details: whatever else has to be the same, as text.
        pieces: names and sizes of what it consists of, each of which begins with a block of its
            own. None: it is all one.
        shapes: of the array, or of each of the pieces; empty: the ranks' shapes may differ.
        priority: its class, by which it goes through other slots.
        part: which part of it this is; None: all of it.
    """

    routine: str
    dtype: str
    size: int
    operation: Operation | None = None
    root: int | None = None
    name: str = ""
    details: str = ""
    pieces: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    part: CallPart | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    def of_any_shape(self) -> Call:
        """Return the call without its shape, for ranks whose shapes may differ."""
        return replace(self, shapes=()) if self.shapes else self

    def describe(self, sequence: int, *, fully: bool = False) -> str:
        """Return a text for messages: "allreduce 7 ('grad', SUM of 1,000 float32)".

        Args:
            sequence: the call's number.
            fully: say the shape also where there is one dimension only.
        """
        if self.routine == "barrier":
            return f"barrier {sequence}"
        named = f"{self.name!r}, " if self.name else ""
        if self.pieces:
            last = f" to {self.pieces[-1][0]!r}" if len(self.pieces) > 1 else ""
            named += f"{self.pieces[0][0]!r}{last}, "
        operation = "" if self.operation is None else f"{self.operation.name} of "
        root = "" if self.root is None else f", root {self.root}"
        details = f", {self.details}" if self.details else ""
        if self.part is not None:
            details += f", part {self.part.number + 1} of {self.part.of}"
        priority = f"{priority_name(self.priority)} " if self.priority else ""
        shape = ""
        if self.shapes and not self.pieces and (fully or len(self.shapes[0]) != 1):
            shape = f", shape {self.shapes[0]}"
        return (
            f"{priority}{self.routine} {sequence} "
            f"({named}{operation}{self.size:,} {self.dtype}{shape}{root}{details})"
        )

    def describe_pieces(self) -> list[str]:
        """Return a text per piece for messages: "'bias' of 10 float32, shape (10,)"."""
        if len(self.shapes) != len(self.pieces):
            return [f"{name!r} of {size:,} {self.dtype}" for name, size in self.pieces]
        return [
            f"{name!r} of {size:,} {self.dtype}, shape {shape}"
            for (name, size), shape in zip(self.pieces, self.shapes, strict=True)
        ]

    def locate(self, block: int, lanes: int) -> str:
        """Return a text for messages: "elements 256 to 511", and of which piece."""
        if self.part is not None:
            block += self.part.first_block
        first = block * lanes
        for name, size in self.pieces:
            padded = -(-size // lanes) * lanes
            if first < padded:
                return f"elements {first:,} to {min(first + lanes, size) - 1:,} of {name!r}"
            first -= padded
        return f"elements {first:,} to {min(first + lanes, self.size) - 1:,}"

    def fingerprint(self, sequence: int, lane_format: Format) -> int:
        """Return a hash of 31 bits: of the call, its number and the lanes' format."""
        before, after = self._around_number
        whole = zlib.crc32(f"{before}, {sequence}, {lane_format:d}{after}".encode())
        return whole & (FLOAT_LANES - 1)

    @functools.cached_property
    def _around_number(self) -> tuple[str, str]:
        """What the fingerprint is of, before and after the call's number and the lanes' format.

        Whole it is a tuple, written as Python does.
        """
        operation = None if self.operation is None else int(self.operation)
        before = (
            self.routine,
            self.dtype,
            self.size,
            operation,
            self.root,
            self.name,
            self.details,
            self.pieces,
        )
        after = (
            *([self.priority] if self.priority else []),
            *([] if self.part is None else [repr(self.part)]),
            *([self.shapes] if self.shapes else []),
        )
        return repr(before)[:-1], "".join(f", {one!r}" for one in after) + ")"


def priority_name(priority: int) -> str:
    """Return a text for messages: "urgent" for class 1, "priority 2" for class 2."""
    names = {member.value: name.lower() for name, member in Priority.__members__.items()}
    return names.get(priority, f"priority {priority}")


def class_slots(slots: int, urgent: Sequence[int]) -> list[range]:
    """Return the slots of each class of a job, those of class 0 first.

    Args:
        slots: of the job.
        urgent: how many are for classes 1, 2 and so on: the last ones, in this order.
    """
    first, classes = slots - sum(urgent), [range(slots - sum(urgent))]
    for number in urgent:
        classes.append(range(first, first + number))
        first += number
    return classes
