# SPDX-License-Identifier: Apache-2.0
"""Frames of the aggregation protocol: docs/protocol.md, "Header".

The header itself is the table of `wire/header.py`. `header_bytes` and `template` build a frame of
it that the fast path then only patches. `wire/frames.py` makes a numpy dtype of the fields, to read
and write a batch of frames as columns.

Neither numpy nor scapy is imported here. The controller needs neither. Scapy takes a fifth of a
second to load, for which a rank that joins would wait.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final, NamedTuple, SupportsBytes

from p4reduce.wire.header import (
    AGG_BYTES,
    AGGREGATION_PORT,
    AGGREGATION_VERSION,
    FLOAT_LANES,
    HALF_BYTES,
    HEADER_FIELDS,
    MAY_BE_HALVED,
    NO_BLOCK,
    NONFINITE_EXPONENT,
    PAYLOAD_BYTES,
    Flag,
    Format,
    FrameKind,
    HeaderField,
)

# With what header.py has: importers need not know which of the two has a name.
__all__ = [
    "AGGREGATION_PORT",
    "AGGREGATION_VERSION",
    "AGG_BYTES",
    "FLOAT_LANES",
    "HALF_BYTES",
    "HEADER_FIELDS",
    "MAY_BE_HALVED",
    "NONFINITE_EXPONENT",
    "NO_BLOCK",
    "PAYLOAD_BYTES",
    "Endpoint",
    "Flag",
    "Format",
    "FrameKind",
    "HeaderField",
    "Hello",
    "header_bytes",
    "parse_hello",
    "template",
]

# -- Numbers: the same as in p4src/common/constants.p4, which a test compares ------------------

ETHERTYPE_IPV4 = 0x0800
PROTOCOL_UDP = 17
_IPV4_NO_OPTIONS = 0x45
_DO_NOT_FRAGMENT = 0x4000
_TTL = 64

ETHERNET_BYTES = 14
IPV4_BYTES = 20
UDP_BYTES = 8

AGG_OFFSET = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
PAYLOAD_OFFSET = AGG_OFFSET + AGG_BYTES
EMPTY_FRAME_BYTES = PAYLOAD_OFFSET
HALF_FRAME_BYTES = PAYLOAD_OFFSET + HALF_BYTES
PAYLOAD_FRAME_BYTES = PAYLOAD_OFFSET + PAYLOAD_BYTES

MAX_WORLD_SIZE = 4096  # 64 switches of 64 ranks each; a switch has a bit for each of its own
MAX_SLOTS = 1024

_PARALLEL = 32  # stripes that blocks are spread over at least
_IN_A_ROW = 2  # blocks of a stripe, if there are more
_NARROW_IN_A_ROW = 3  # with lanes of 4 bits


def frame_bytes(lanes: int) -> int:
    """Return the bytes of a frame with so many lanes of 32 bits, from the Ethernet header on."""
    return PAYLOAD_OFFSET + 4 * lanes


def stripes_of(blocks: int, slots: int, lane_bits: int = 32) -> int:
    """Return how many slots a collective uses, at least one: docs/protocol.md, "Words".

    A frame of 78 bytes opens each stripe. With a stripe per block, half of the frames of 64 KB
    would open stripes, and all ranks would send all blocks to one link at once. With lanes of 4
    bits these frames would be 7 % of the bytes.

    Args:
        blocks: of the collective, zeros too.
        slots: for collectives of its class.
        lane_bits: of its lanes.
    """
    in_a_row = _NARROW_IN_A_ROW if lane_bits == 4 else _IN_A_ROW
    return max(1, min(slots, blocks, max(_PARALLEL, -(-blocks // in_a_row))))


def header_bytes(**values: int) -> bytes:
    """Return an aggregation header, `AGG_BYTES` long.

    Args:
        values: by the names of `HEADER_FIELDS`; a field that is not named has its default.

    Raises:
        ValueError: there is no such field, or it does not hold the value; says which.
    """
    number = 0
    for field in HEADER_FIELDS:
        value = int(values.pop(field.name, field.default))
        if not 0 <= value < 1 << field.bits:
            raise ValueError(f"{field.name} has {field.bits} bits, which do not hold {value}")
        number = number << field.bits | value
    if values:
        raise ValueError(f"the aggregation header has no field {', '.join(sorted(values))}")
    return number.to_bytes(AGG_BYTES, "big")


# -- Whole frames ---------------------------------------------------------------------------------

FRAME_STRIDE = 2048
"""Bytes from one frame to the next in a buffer of frames; a page holds two."""


class Column(NamedTuple):
    """Bytes of a frame that hold a big-endian number or a MAC address.

    Attributes:
        name: in the documentation and in `frames.HEADER`.
        offset: in bytes from the frame's first one.
        size: in bytes.
    """

    name: str
    offset: int
    size: int


# The standard headers below ours: RFC 894, 791 and 768, without options. Fields that share a byte
# or a word are one column. A test compares them with scapy's layers.
_BELOW: Final = (
    ("eth_dst", 6),
    ("eth_src", 6),
    ("eth_type", 2),
    ("ip_version_ihl", 1),
    ("ip_tos", 1),
    ("ip_len", 2),
    ("ip_id", 2),
    ("ip_flags_frag", 2),
    ("ip_ttl", 1),
    ("ip_proto", 1),
    ("ip_chksum", 2),
    ("ip_src", 4),
    ("ip_dst", 4),
    ("udp_sport", 2),
    ("udp_dport", 2),
    ("udp_len", 2),
    ("udp_chksum", 2),
)


def _columns() -> tuple[Column, ...]:
    """Derive a frame's columns from the standard headers and `HEADER_FIELDS`.

    A field that begins and ends at a byte keeps its name. Fields that share a byte become one
    column that has the names of all, joined by underscores: version and kind are `version_kind`.
    """
    sizes = list(_BELOW)
    shared: list[str] = []
    bits = 0
    for field in HEADER_FIELDS:
        bits += field.bits
        shared.append(field.name)
        if bits % 8:
            continue
        sizes.append(("_".join(shared), bits // 8))
        shared, bits = [], 0
    offsets = [sum(size for _, size in sizes[:place]) for place in range(len(sizes))]
    return tuple(Column(name, at, size) for (name, size), at in zip(sizes, offsets, strict=True))


COLUMNS: Final = _columns()
"""A whole frame: Ethernet (`eth_…`), IPv4 (`ip_…`), UDP (`udp_…`) and the aggregation header's own
fields, in order."""

_PLACES = {name: slice(offset, offset + size) for name, offset, size in COLUMNS}


@dataclass(frozen=True)
class Endpoint:
    """The host that a frame comes from or goes to."""

    mac: str
    ip: str
    udp_port: int


def template(
    source: Endpoint, destination: Endpoint, header: bytes | SupportsBytes, payload: bytes = b""
) -> bytes:
    """Build a whole frame.

    Args:
        source: who sends it.
        destination: whom it is for.
        header: as `header_bytes` returns it, or scapy's layer `Aggregation`.
        payload: nothing, or a block's 1,024 bytes.

    Returns:
        The frame with its lengths and IPv4 checksum (RFC 1071), and a UDP checksum of 0 (none).

    Raises:
        ValueError: one of the addresses is not a MAC or IPv4 address; says which.
    """
    data = bytes(header) + payload
    below = {
        "eth_dst": _mac_number(destination.mac),
        "eth_src": _mac_number(source.mac),
        "eth_type": ETHERTYPE_IPV4,
        "ip_version_ihl": _IPV4_NO_OPTIONS,
        "ip_len": IPV4_BYTES + UDP_BYTES + len(data),
        "ip_flags_frag": _DO_NOT_FRAGMENT,
        "ip_ttl": _TTL,
        "ip_proto": PROTOCOL_UDP,
        "ip_src": int(IPv4Address(source.ip)),
        "ip_dst": int(IPv4Address(destination.ip)),
        "udp_sport": source.udp_port,
        "udp_dport": destination.udp_port,
        "udp_len": UDP_BYTES + len(data),
    }
    frame = bytearray(AGG_OFFSET)
    for name, number in below.items():
        place = _PLACES[name]
        frame[place] = number.to_bytes(place.stop - place.start, "big")
    total = sum(struct.unpack_from(f">{IPV4_BYTES // 2}H", frame, ETHERNET_BYTES))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    frame[_PLACES["ip_chksum"]] = (0xFFFF - total).to_bytes(2, "big")
    return bytes(frame) + data


def _mac_number(mac: str) -> int:
    if not re.fullmatch("[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}", mac):
        raise ValueError(f"a MAC address has 6 bytes, as in 02:00:00:00:00:01; this is {mac!r}")
    return int.from_bytes(bytes(int(byte, 16) for byte in mac.split(":")), "big")


# -- HELLO ----------------------------------------------------------------------------------------


_HELLO_FIELDS = {
    "eth_type": ETHERTYPE_IPV4,
    "ip_version_ihl": _IPV4_NO_OPTIONS,
    "ip_proto": PROTOCOL_UDP,
    "udp_dport": AGGREGATION_PORT,
    "udp_len": UDP_BYTES + AGG_BYTES,
    "version_kind": AGGREGATION_VERSION << 4 | FrameKind.HELLO,
}


@dataclass(frozen=True)
class Hello:
    """The content of a worker's HELLO, and its sender.

    `nonce` is what the controller gave the rank when it joined.
    """

    job: int
    rank: int
    nonce: int
    mac: str
    ip: str
    udp_port: int


def parse_hello(frame: bytes) -> Hello:
    """Parse a HELLO frame.

    Args:
        frame: from the Ethernet header on.

    Raises:
        ValueError: it is no HELLO of this protocol; says what it has instead.
    """
    if len(frame) != EMPTY_FRAME_BYTES:
        raise ValueError(f"a HELLO has {EMPTY_FRAME_BYTES} bytes, this frame {len(frame)}")
    record = {name: int.from_bytes(frame[place], "big") for name, place in _PLACES.items()}
    for column, right in _HELLO_FIELDS.items():
        if record[column] != right:
            raise ValueError(f"no HELLO: {column} is {record[column]:#x}, not {right:#x}")
    return Hello(
        job=record["job"],
        rank=record["rank"],
        nonce=record["contributors"],
        mac=frame[_PLACES["eth_src"]].hex(":"),
        ip=str(IPv4Address(record["ip_src"])),
        udp_port=record["udp_sport"],
    )
