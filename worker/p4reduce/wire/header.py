# SPDX-License-Identifier: Apache-2.0
"""The one definition of the aggregation header: docs/protocol.md, "Header".

Made from these tables at run time: the numpy dtype (`wire/frames.py`) and the scapy layer
(`wire/layer.py`). Written from them by `make header`, committed, and compared by `make lint`:

| file | what of it |
|---|---|
| p4src/common/header.p4 | header, types, constants |
| native/p4reduce_native/csrc/worker/header.h | offsets, constants, reading and writing fields |
| wireshark/p4reduce.lua | the dissector |
| docs/protocol.md | the drawing and the tables |
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from p4reduce_native.frame_lanes import FRAME_LANES

AGGREGATION_PORT = 0xBEE0
AGGREGATION_VERSION = 1

PAYLOAD_BYTES = 4 * FRAME_LANES
HALF_BYTES = PAYLOAD_BYTES // 2
MAY_BE_HALVED = PAYLOAD_BYTES > 512  # BMv2 adds no more to a frame: docs/protocol.md, "Room"

NO_BLOCK = 0xFFFFFFFF
NONFINITE_EXPONENT = 255

FLOAT_LANES = 1 << 31
"""In a tag: lanes of 32 bits stand for float32 or float16, so links may round sums to float32."""


class FrameKind(IntEnum):
    """The kinds of frames."""

    CONTRIBUTE = 0
    RESULT = 1
    STATUS = 2
    HELLO = 8


KINDS: Final = {
    FrameKind.CONTRIBUTE: "worker to switch, or switch to the one above",
    FrameKind.RESULT: "the other way: the sum",
    FrameKind.STATUS: "the other way: which ranks have been heard",
    FrameKind.HELLO: "worker to controller, through the switch",
}


class Flag(IntFlag):
    """Flags of a frame."""

    PAYLOAD = 0x01
    OVERFLOW = 0x02
    NONFINITE = 0x04
    MISMATCH = 0x08
    RETRANSMISSION = 0x10
    PADDED = 0x20
    FIRST_HALF = 0x40
    TELL_ALL = 0x40
    SECOND_HALF = 0x80
    FOR_ONE = 0x80


class FlagMeaning(NamedTuple):
    """The meaning of a flag.

    Attributes:
        frames: in which it says so.
        meaning: there.
        program: the meaning in a comment of the P4 program; "": its name says all.
    """

    frames: str
    meaning: str
    program: str = ""


_SUMS: Final = "CONTRIBUTE, RESULT"
_SWITCHES: Final = "CONTRIBUTE of a switch, RESULT"
FLAGS: Final = {
    "PAYLOAD": FlagMeaning(_SUMS, "1,024 bytes of lanes follow, or 512 in a half"),
    "OVERFLOW": FlagMeaning(_SWITCHES, "a lane has left its range"),
    "NONFINITE": FlagMeaning(_SUMS, "the block has NaN or infinity on some rank"),
    "MISMATCH": FlagMeaning(_SWITCHES, "ranks have called different collectives"),
    "RETRANSMISSION": FlagMeaning(
        "CONTRIBUTE, RESULT, STATUS", "by a timer, or an answer to such a frame"
    ),
    "PADDED": FlagMeaning(
        "CONTRIBUTE, STATUS", "zeros that make room for the sums; a STATUS asks for them"
    ),
    "FIRST_HALF": FlagMeaning("RESULT", "lanes of the block's first half"),
    "TELL_ALL": FlagMeaning(
        "CONTRIBUTE",
        "a STATUS is for all ranks",
        "FIRST_HALF's bit in a contribution, which has no halves: a status is for all ranks",
    ),
    "SECOND_HALF": FlagMeaning("RESULT", "lanes of the block's second half"),
    "FOR_ONE": FlagMeaning(
        "CONTRIBUTE of a switch, STATUS",
        "for the rank that asks for all, and for nobody else",
        "SECOND_HALF's bit in what a switch asks its parent, and in the status that answers: for"
        " the rank that asks for all, and for nobody else",
    ),
}
"""By the names of `Flag`, of which two may have the same bit in different frames."""


class Format(IntEnum):
    """What the 1,024 bytes of a block hold."""

    INT32 = 0
    INT16 = 1
    INT8 = 2
    WRAP32 = 3
    INT4 = 4

    @property
    def lanes(self) -> int:
        """Lanes in a block."""
        return 8 * PAYLOAD_BYTES // self.lane_bits

    @property
    def lane_bits(self) -> int:
        """The bits of a lane."""
        return FORMATS[self].lane_bits

    @property
    def lane_maximum(self) -> int:
        """The largest number that a lane holds."""
        return int((1 << (self.lane_bits - 1)) - 1)


class FormatMeaning(NamedTuple):
    """Lanes of a format.

    Attributes:
        lane_bits: how wide they are.
        meaning: what they hold.
    """

    lane_bits: int
    meaning: str


FORMATS: Final = {
    Format.INT32: FormatMeaning(32, "integers"),
    Format.INT16: FormatMeaning(16, "integers"),
    Format.INT8: FormatMeaning(8, "integers"),
    Format.WRAP32: FormatMeaning(32, "as INT32, modulo 2³²: nothing overflows"),
    Format.INT4: FormatMeaning(4, "integers, two in a byte, the first one in its upper half"),
}


class HeaderField(NamedTuple):
    """A field of the aggregation header.

    Attributes:
        name: in columns, in scapy, in C and in P4.
        bits: how wide it is.
        writer: who fills it in.
        meaning: in docs/protocol.md.
        label: in Wireshark.
        default: what it holds where nobody says otherwise.
        hexadecimal: whether people read it better so.
        p4_type: its name in the P4 program, without "_t"; "": plain bits.
        p4_meaning: a comment there.
    """

    name: str
    bits: int
    writer: str
    meaning: str
    label: str
    default: int = 0
    hexadecimal: bool = False
    p4_type: str = ""
    p4_meaning: str = ""


_ALL: Final = "all"
_WORKER: Final = "worker"
_BOTH: Final = "worker, switch"
_SWITCH: Final = "switch"

HEADER_FIELDS: Final = (
    HeaderField("version", 4, _ALL, f"{AGGREGATION_VERSION}", "Version", AGGREGATION_VERSION),
    HeaderField("kind", 4, _ALL, "what the frame is, see below", "Kind", FrameKind.CONTRIBUTE),
    HeaderField("flags", 8, _ALL, "see below", "Flags"),
    HeaderField(
        "rank",
        16,
        _BOTH,
        "who sends (up), whom it is for (down); between switches the child's number at its parent",
        "Rank",
        p4_type="rank",
    ),
    HeaderField("job", 32, _WORKER, "incarnation id", "Job (incarnation)", p4_type="job"),
    HeaderField("slot", 16, _WORKER, "within the job's range", "Slot", p4_type="slot"),
    HeaderField("format", 8, _WORKER, "of the lanes, see below", "Format", Format.INT32),
    HeaderField(
        "next_exponent",
        8,
        _BOTH,
        "float32's biased exponent of the largest magnitude in `next block`; 0 where there is "
        "none, 255 for NaN or infinity. STATUS: how many switches above the receiver's own one "
        "it is from",
        "Next exponent (float32, biased)",
    ),
    HeaderField(
        "round",
        32,
        _WORKER,
        "compared in serial-number arithmetic (RFC 1982)",
        "Round",
        p4_type="round",
    ),
    HeaderField(
        "block",
        32,
        _WORKER,
        "what this round sums; 0xFFFFFFFF: nothing, it only opens the stripe",
        "Block",
        NO_BLOCK,
        True,
        "block",
        "a block's number; all ones: none",
    ),
    HeaderField(
        "next_block",
        32,
        _BOTH,
        "up: the sender's first non-zero block in the stripe after `block`; down: the smallest "
        "of all ranks'; 0xFFFFFFFF: none",
        "Next block",
        NO_BLOCK,
        True,
        "block",
    ),
    HeaderField("tag", 32, _WORKER, "see above", "Tag of the collective", hexadecimal=True),
    HeaderField(
        "contributors",
        64,
        _SWITCH,
        "RESULT, STATUS: the ranks (or switches) heard in this round, rank 0 the lowest bit. "
        "HELLO: the nonce, by the worker",
        "Contributors (HELLO: nonce)",
        0,
        True,
        "ranks",
        "one bit for each rank here, or for each switch below",
    ),
)
"""The bytes after UDP, in order. What follows them, if anything, is a block's lanes."""

AGG_BYTES: Final = sum(field.bits for field in HEADER_FIELDS) // 8
