# SPDX-License-Identifier: Apache-2.0
"""The aggregation protocol on the wire: docs/protocol.md, "Header".

The header is defined once, as the scapy layer `Aggregation`. Everything else here follows from
it: `HEADER` is a numpy dtype derived from the layer's fields, so that a batch of frames can be
read and written as columns, and `template` builds a frame by scapy that the fast path then only
patches. Scapy takes about half a millisecond to build a frame and must stay off that path.

Dissecting a capture::

    >>> from scapy.layers.l2 import Ether
    >>> from p4reduce.wire import format as wire
    >>> here = wire.Endpoint("02:00:00:00:00:01", "10.77.0.1", 49152)
    >>> there = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
    >>> frame = wire.template(here, there, wire.Aggregation(kind=wire.Kind.HELLO, job=7))
    >>> Ether(frame)[wire.Aggregation].job
    7
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from ipaddress import IPv4Address
from typing import Any

import numpy as np
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
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

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
MAX_WORLD_SIZE = 64
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
    """The 36 bytes after UDP. What follows them, if anything, is a block's lanes."""

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


bind_layers(UDP, Aggregation, dport=AGGREGATION_PORT)
bind_layers(UDP, Aggregation, sport=AGGREGATION_PORT)


# -- Frames as numpy records ----------------------------------------------------------------------

FRAME_STRIDE = 2048
"""Bytes from one frame to the next in a buffer of frames; a page holds two."""


def _columns() -> np.dtype[Any]:
    """Derive a frame's dtype from the layers' fields.

    A field that begins and ends at a byte keeps its name and becomes a big-endian unsigned
    number (or bytes, for a MAC address). Fields that share a byte become one column that has
    the names of all, joined by underscores: version and kind are `version_kind`.
    """
    names: list[str] = []
    formats: list[str] = []
    offsets: list[int] = []
    position = 0
    for prefix, layer in (("eth", Ether), ("ip", IP), ("udp", UDP), ("", Aggregation)):
        shared: list[str] = []
        start = position
        for field in layer.fields_desc:
            bits = round(8 * field.sz)
            if layer is IP and field.name == "options":
                continue  # variable, and never there: ihl is 5
            position += bits
            shared.append(field.name)
            if position % 8:
                continue
            size = (position - start) // 8
            names.append("_".join([prefix, *shared] if prefix else shared))
            formats.append(f">u{size}" if size in (1, 2, 4, 8) else f"({size},)u1")
            offsets.append(start // 8)
            shared, start = [], position
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
    """Build a whole frame by scapy.

    Args:
        source: who sends it.
        destination: whom it is for.
        header: an `Aggregation`.
        payload: nothing, or a block's 1,024 bytes.

    Returns:
        The frame with its lengths and IPv4 checksum, and a UDP checksum of 0 (none).
    """
    ethernet = Ether(src=source.mac, dst=destination.mac, type=ETHERTYPE_IPV4)
    ip = IP(src=source.ip, dst=destination.ip, id=0, flags="DF", ttl=64, proto=PROTOCOL_UDP)
    udp = UDP(sport=source.udp_port, dport=destination.udp_port, chksum=0)
    return bytes(ethernet / ip / udp / header / Raw(payload))


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
    "ip_version_ihl": 0x45,
    "ip_proto": PROTOCOL_UDP,
    "udp_dport": AGGREGATION_PORT,
    "udp_len": UDP_BYTES + AGG_BYTES,
    "version_kind": AGGREGATION_VERSION << 4 | Kind.HELLO,
}
