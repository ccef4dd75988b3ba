# SPDX-License-Identifier: Apache-2.0
"""The labs' frames: include/lab.p4's header, in Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

NONE = 0xFFFFFFFF
PAYLOAD, OVERFLOW = 1, 2
SLOTS = 8
_TYPE = 0x88B5
_FORMAT = struct.Struct(">6s6sHBBHIIII4I")
LENGTH = _FORMAT.size
_WORD = 1 << 32

Lanes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Frame:
    """A frame. Lanes are words of 32 bits, unsigned."""

    rank: int = 0
    flags: int = PAYLOAD
    slot: int = 0
    round: int = 1
    count: int = 0
    block: int = 0
    next: int = NONE
    lanes: Lanes = (0, 0, 0, 0)

    @property
    def port(self) -> int:
        """Where the rank is."""
        return self.rank + 1

    def pack(self) -> bytes:
        """Return the bytes."""
        return _FORMAT.pack(
            bytes(6),
            bytes(5) + bytes([self.port]),
            _TYPE,
            self.rank,
            self.flags,
            self.slot,
            self.round,
            self.count,
            self.block,
            self.next,
            *(lane % _WORD for lane in self.lanes),
        )

    @classmethod
    def unpack(cls, frame: bytes) -> Frame:
        """Read a frame."""
        fields = _FORMAT.unpack(frame[:LENGTH])
        rank, flags, slot, round_, count, block, behind = fields[3:10]
        a, b, c, d = fields[10:]
        return cls(rank, flags, slot, round_, count, block, behind, (a, b, c, d))

    def of(self, rank: int) -> Frame:
        """The same frame from another rank."""
        return replace(self, rank=rank)

    def __str__(self) -> str:
        lanes = " ".join(str(signed(lane)) for lane in self.lanes)
        return f"rank {self.rank}, slot {self.slot}, round {self.round}, lanes {lanes}"


def signed(word: int, bits: int = 32) -> int:
    """A word as int32 (or of that many bits)."""
    word %= 1 << bits
    return word - (1 << bits) if word >> (bits - 1) else word


def summed(*frames: Lanes) -> Lanes:
    """The sums of int32 lanes, modulo 2^32."""
    a, b, c, d = (sum(lane) % _WORD for lane in zip(*frames, strict=True))
    return a, b, c, d
