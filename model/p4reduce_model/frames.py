# SPDX-License-Identifier: Apache-2.0
"""Frames in flight: each distinct one has a number, a set of them is an integer of as many bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt
from p4reduce.wire import format as wire
from p4reduce.wire.format import NO_BLOCK, Flag, Format, FrameKind
from p4reduce.wire.frames import HEADER
from p4reduce.wire.lanes import unpack

_FLAGS = wire.AGG_OFFSET + 1
_REPEATED = int(Flag.RETRANSMISSION)
_IN_RESULTS = {flag: str(flag.name) for flag in Flag}
_ELSEWHERE = {flag: name for name, flag in Flag.__members__.items()}  # the last name of a bit

Lanes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Header:
    """The aggregation header of a frame."""

    kind: FrameKind
    flags: Flag
    rank: int
    job: int
    slot: int
    format: Format
    next_exponent: int
    round: int
    block: int
    next_block: int
    tag: int
    contributors: int


@dataclass(frozen=True)
class Frame:
    """A frame on a link of a switch, to a host or to another switch.

    Frames that differ in RETRANSMISSION alone are one frame here. The flag is for statistics: that
    nothing else follows from it is checked at each step, by doing it with either.

    Attributes:
        number: also its bit in a set of frames.
        inward: to a switch; else to a host.
        switch, port: the end of the link at the switch that it goes to, or if it goes to a host,
            that it comes from.
        data: the bytes, from Ethernet on, without that flag.
        header: dissected.
    """

    number: int
    inward: bool
    switch: int
    port: int
    data: bytes
    header: Header

    @cached_property
    def repeated(self) -> bytes:
        """The same with the flag."""
        return _with_flag(self.data, True)

    @property
    def lanes(self) -> Lanes:
        """What follows the header, as numbers in the frame's own lane format."""
        payload = np.frombuffer(self.data[wire.PAYLOAD_OFFSET :], np.uint8)
        return unpack(payload, self.header.format).astype(np.int64)

    def __str__(self) -> str:
        """Its fields, as a counterexample shows them."""
        head = self.header
        words = [head.kind.name, f"job {head.job}", f"slot {head.slot}", f"round {head.round}"]
        words.append("opening" if head.block == NO_BLOCK else f"block {head.block}")
        words.append(f"next {'none' if head.next_block == NO_BLOCK else head.next_block}")
        if head.next_exponent:
            words.append(f"exponent {head.next_exponent}")
        if head.kind is not FrameKind.CONTRIBUTE:
            heard = [rank for rank in range(64) if head.contributors >> rank & 1]
            words.append(f"heard {{{', '.join(map(str, heard))}}}")
        if head.flags:
            names = _IN_RESULTS if head.kind is FrameKind.RESULT else _ELSEWHERE
            words.append("+".join(name for flag, name in names.items() if flag in head.flags))
        return f"{words[0]} " + ", ".join(words[1:])


class Frames:
    """All frames that were ever sent, each once."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._numbers: dict[tuple[bool, int, int, bytes], int] = {}

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, number: int) -> Frame:
        return self._frames[number]

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def number(
        self,
        *,
        inward: bool,
        at: tuple[int, int],
        data: bytes,
        check: Callable[[Frame], None],
    ) -> int:
        """Return a frame's number: a new one if it was never seen, and `check` lets it pass.

        `at` is the switch and its port.
        """
        data = _with_flag(data, False)
        key = (inward, *at, data)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._frames)
            frame = Frame(number, inward, *at, data, _header(data))
            check(frame)
            self._numbers[key] = number
            self._frames.append(frame)
        return number

    def of(self, bits: int) -> Iterator[Frame]:
        """The frames of a set."""
        for number in numbers(bits):
            yield self._frames[number]


def numbers(bits: int) -> Iterator[int]:
    """The numbers in a set of frames, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _with_flag(data: bytes, repeated: bool) -> bytes:
    flags = data[_FLAGS] | _REPEATED if repeated else data[_FLAGS] & ~_REPEATED
    return data[:_FLAGS] + bytes([flags]) + data[_FLAGS + 1 :]


def _header(data: bytes) -> Header:
    buffer = np.zeros(wire.FRAME_STRIDE, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    record = buffer.view(HEADER)[0]
    names = [field.name for field in fields(Header)]
    numbers = {name: int(record[name]) for name in names if name != "kind"}
    return Header(
        kind=FrameKind(int(record["version_kind"]) & 0xF),
        flags=Flag(numbers.pop("flags")),
        format=Format(numbers.pop("format")),
        **numbers,
    )
