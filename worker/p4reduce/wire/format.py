# SPDX-License-Identifier: Apache-2.0
"""The aggregation protocol on the wire: docs/protocol.md, "Header".

The header is defined once, as the scapy layer `Aggregation`. Everything else here follows from
it: `HEADER` is a numpy dtype derived from the layer's fields, so that a batch of frames can be
read and written as columns, and `template` builds a frame by it that the fast path then only
patches. Scapy takes about half a millisecond to build a frame and must stay off that path.

Of scapy, only fields and packets are imported here. Its Ethernet and IP layers read all interfaces
and routes of the machine when they are imported, which takes seconds where there are hundreds of
interfaces; `wire/dissect.py` imports them, for those who take frames apart by scapy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from ipaddress import IPv4Address
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    FlagsField,
    IntField,
    ShortField,
    XIntField,
    XLongField,
)
from scapy.packet import Packet

# -- Numbers: the same as in p4src/include/constants.p4, which a test compares ------------------

AGGREGATION_PORT = 0xBEE0
AGGREGATION_VERSION = 1
ETHERTYPE_IPV4 = 0x0800
PROTOCOL_UDP = 17

ETHERNET_BYTES = 14
IPV4_BYTES = 20
UDP_BYTES = 8
AGG_BYTES = 36
PAYLOAD_BYTES = 1024
HALF_BYTES = 512

AGG_OFFSET = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
PAYLOAD_OFFSET = AGG_OFFSET + AGG_BYTES
EMPTY_FRAME_BYTES = PAYLOAD_OFFSET
HALF_FRAME_BYTES = PAYLOAD_OFFSET + HALF_BYTES
PAYLOAD_FRAME_BYTES = PAYLOAD_OFFSET + PAYLOAD_BYTES

NO_BLOCK = 0xFFFFFFFF
NONFINITE_EXPONENT = 255
MAX_WORLD_SIZE = 4096  # 64 switches of 64 ranks each; a switch has a bit for each of its own
MAX_SLOTS = 1024


class Kind(IntEnum):
    """What a frame is."""

    CONTRIBUTE = 0
    RESULT = 1
    STATUS = 2
    HELLO = 8


class Flag(IntFlag):
    """What else there is to say about a frame."""

    PAYLOAD = 0x01
    OVERFLOW = 0x02
    NONFINITE = 0x04
    MISMATCH = 0x08
    RETRANSMISSION = 0x10
    PADDED = 0x20
    FIRST_HALF = 0x40
    SECOND_HALF = 0x80


class Format(IntEnum):
    """What the 1,024 bytes of a block hold."""

    INT32 = 0
    INT16 = 1
    INT8 = 2

    @property
    def lanes(self) -> int:
        """Lanes in a block."""
        return PAYLOAD_BYTES // self.lane_bytes

    @property
    def lane_bytes(self) -> int:
        """Bytes in a lane."""
        return (4, 2, 1)[self]

    @property
    def lane_maximum(self) -> int:
        """The largest number that a lane holds."""
        return int((1 << (8 * self.lane_bytes - 1)) - 1)


class Aggregation(Packet):
    """The 36 bytes after UDP. What follows them, if anything, is a block's lanes.

    `wire/dissect.py` binds it to UDP's port, so that scapy finds it in a frame.
    """

    name = "Aggregation"
    fields_desc = [  # noqa: RUF012  # scapy's own convention
        BitField("version", AGGREGATION_VERSION, 4),
        BitEnumField("kind", Kind.CONTRIBUTE, 4, {int(kind): kind.name for kind in Kind}),
        FlagsField("flags", 0, 8, [str(flag.name) for flag in Flag]),
        ShortField("rank", 0),
        IntField("job", 0),
        ShortField("slot", 0),
        ByteEnumField("format", Format.INT32, {int(lanes): lanes.name for lanes in Format}),
        ByteField("next_exponent", 0),
        IntField("round", 0),
        XIntField("block", NO_BLOCK),
        XIntField("next_block", NO_BLOCK),
        XIntField("tag", 0),
        XLongField("contributors", 0),
    ]


# -- Frames as numpy records ----------------------------------------------------------------------

FRAME_STRIDE = 2048
"""Bytes from one frame to the next in a buffer of frames; a page holds two."""


# The standard headers below ours: RFC 894, 791 and 768, without options. Fields that share a byte
# or a word are one column. A test compares them with scapy's layers.
_BELOW: Final = (
    ("eth_dst", "(6,)u1"),
    ("eth_src", "(6,)u1"),
    ("eth_type", ">u2"),
    ("ip_version_ihl", ">u1"),
    ("ip_tos", ">u1"),
    ("ip_len", ">u2"),
    ("ip_id", ">u2"),
    ("ip_flags_frag", ">u2"),
    ("ip_ttl", ">u1"),
    ("ip_proto", ">u1"),
    ("ip_chksum", ">u2"),
    ("ip_src", ">u4"),
    ("ip_dst", ">u4"),
    ("udp_sport", ">u2"),
    ("udp_dport", ">u2"),
    ("udp_len", ">u2"),
    ("udp_chksum", ">u2"),
)


def _columns() -> np.dtype[Any]:
    """Derive a frame's dtype from the standard headers and the layer's fields.

    A field that begins and ends at a byte keeps its name and becomes a big-endian unsigned
    number (or bytes, for a MAC address). Fields that share a byte become one column that has
    the names of all, joined by underscores: version and kind are `version_kind`.
    """
    names = [name for name, _ in _BELOW]
    formats = [form for _, form in _BELOW]
    shared: list[str] = []
    bits = 0
    for field in Aggregation.fields_desc:
        bits += round(8 * field.sz)
        shared.append(field.name)
        if bits % 8:
            continue
        names.append("_".join(shared))
        formats.append(f">u{bits // 8}")
        shared, bits = [], 0
    sizes = [np.dtype(form).itemsize for form in formats]
    offsets = [sum(sizes[:place]) for place in range(len(sizes))]
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": FRAME_STRIDE}
    )


HEADER: np.dtype[Any] = _columns()
"""A whole frame in a buffer of `FRAME_STRIDE` bytes a frame: Ethernet (`eth_…`), IPv4 (`ip_…`),
UDP (`udp_…`) and the aggregation header's own fields. All numbers are big-endian."""


@dataclass(frozen=True)
class Endpoint:
    """Whom a frame comes from or goes to."""

    mac: str
    ip: str
    udp_port: int


def template(
    source: Endpoint, destination: Endpoint, header: Packet, payload: bytes = b""
) -> bytes:
    """Build a whole frame.

    Args:
        source: who sends it.
        destination: whom it is for.
        header: an `Aggregation`, whose bytes scapy makes.
        payload: nothing, or a block's 1,024 bytes.

    Returns:
        The frame with its lengths and IPv4 checksum (RFC 1071), and a UDP checksum of 0 (none).

    Raises:
        ValueError: one of the addresses is not a MAC or IPv4 address; says which.
    """
    data = bytes(header) + payload
    below = np.zeros(1, HEADER)
    below["eth_dst"] = _mac_bytes(destination.mac)
    below["eth_src"] = _mac_bytes(source.mac)
    below["eth_type"] = ETHERTYPE_IPV4
    below["ip_version_ihl"] = _IPV4_NO_OPTIONS
    below["ip_len"] = IPV4_BYTES + UDP_BYTES + len(data)
    below["ip_flags_frag"] = _DO_NOT_FRAGMENT
    below["ip_ttl"] = _TTL
    below["ip_proto"] = PROTOCOL_UDP
    below["ip_src"] = int(IPv4Address(source.ip))
    below["ip_dst"] = int(IPv4Address(destination.ip))
    below["udp_sport"] = source.udp_port
    below["udp_dport"] = destination.udp_port
    below["udp_len"] = UDP_BYTES + len(data)
    words = np.frombuffer(below.tobytes(), ">u2", IPV4_BYTES // 2, ETHERNET_BYTES)
    total = int(words.sum(dtype=np.uint64))
    total = (total & 0xFFFF) + (total >> 16)
    below["ip_chksum"] = 0xFFFF - ((total & 0xFFFF) + (total >> 16))
    return below.tobytes()[:AGG_OFFSET] + data


_IPV4_NO_OPTIONS = 0x45
_DO_NOT_FRAGMENT = 0x4000
_TTL = 64


def _mac_bytes(mac: str) -> npt.NDArray[np.uint8]:
    if not re.fullmatch("[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}", mac):
        raise ValueError(f"a MAC address has 6 bytes, as in 02:00:00:00:00:01; this is {mac!r}")
    return np.array([int(byte, 16) for byte in mac.split(":")], np.uint8)


# -- HELLO ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """What a worker's HELLO says, and whom it comes from.

    `nonce` is what the controller gave the rank when it joined.
    """

    job: int
    rank: int
    nonce: int
    mac: str
    ip: str
    udp_port: int


def parse_hello(frame: bytes) -> Hello:
    """Read a HELLO frame.

    Args:
        frame: from the Ethernet header on.

    Raises:
        ValueError: it is no HELLO of this protocol; says what it has instead.
    """
    if len(frame) != EMPTY_FRAME_BYTES:
        raise ValueError(f"a HELLO has {EMPTY_FRAME_BYTES} bytes, this frame {len(frame)}")
    buffer = np.zeros(FRAME_STRIDE, np.uint8)
    buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
    record = buffer.view(HEADER)[0]
    for column, right in _HELLO_FIELDS.items():
        if record[column] != right:
            raise ValueError(f"no HELLO: {column} is {int(record[column]):#x}, not {right:#x}")
    return Hello(
        job=int(record["job"]),
        rank=int(record["rank"]),
        nonce=int(record["contributors"]),
        mac=":".join(f"{byte:02x}" for byte in record["eth_src"]),
        ip=str(IPv4Address(int(record["ip_src"]))),
        udp_port=int(record["udp_sport"]),
    )


_HELLO_FIELDS = {
    "eth_type": ETHERTYPE_IPV4,
    "ip_version_ihl": _IPV4_NO_OPTIONS,
    "ip_proto": PROTOCOL_UDP,
    "udp_dport": AGGREGATION_PORT,
    "udp_len": UDP_BYTES + AGG_BYTES,
    "version_kind": AGGREGATION_VERSION << 4 | Kind.HELLO,
}
