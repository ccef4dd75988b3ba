# SPDX-License-Identifier: Apache-2.0
"""Frames, crafted and taken apart by scapy: docs/protocol.md, "Header"."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import (
    AGGREGATION_VERSION,
    EMPTY_FRAME_BYTES,
    HALF_FRAME_BYTES,
    NO_BLOCK,
    PAYLOAD_BYTES,
    PAYLOAD_FRAME_BYTES,
    PAYLOAD_OFFSET,
    Endpoint,
    Flag,
    FrameKind,
)

FIRST_HALF, SECOND_HALF = frozenset({"first"}), frozenset({"second"})
WHOLE = FIRST_HALF | SECOND_HALF
"""Parts of a block's sums."""

_HALVES = Flag.FIRST_HALF | Flag.SECOND_HALF
_OF_RESULTS = (
    Flag.PAYLOAD | Flag.OVERFLOW | Flag.NONFINITE | Flag.MISMATCH | Flag.RETRANSMISSION | _HALVES
)


def contribution(
    here: Endpoint,
    switch: Endpoint,
    *,
    flags: Flag,
    block: int | None,
    next_block: int | None,
    lanes: bytes,
    **fields: Any,
) -> Packet:
    """Craft a CONTRIBUTE frame.

    Args:
        here: addresses.
        switch: as `here`.
        flags: of the header.
        block: that the round is about; None: it only opens the stripe.
        next_block: this rank's first one after that which is not all zeros; None: there is none.
        lanes: 1,024 bytes, or none.
        fields: of the header, by scapy's names.
    """
    header = Aggregation(
        kind=FrameKind.CONTRIBUTE,
        flags=int(flags),
        block=NO_BLOCK if block is None else block,
        next_block=NO_BLOCK if next_block is None else next_block,
        **fields,
    )
    frame = (
        Ether(src=here.mac, dst=switch.mac)
        / IP(src=here.ip, dst=switch.ip, id=0, flags="DF")
        / UDP(sport=here.udp_port, dport=switch.udp_port, chksum=0)
        / header
    )
    return frame / Raw(lanes) if lanes else frame


def padded(frame: Packet) -> Packet:
    """Return a frame without lanes, padded to the size of a result: "Halves and padding"."""
    wider = frame.copy() / Raw(bytes(PAYLOAD_BYTES))
    wider[Aggregation].flags |= int(Flag.PADDED)
    return wider


def readdressed(frame: Packet, here: Endpoint, switch: Endpoint, *, job: int, round: int) -> Packet:
    """Return a contribution as it is sent to another switch for the first time."""
    header = frame[Aggregation].copy()
    header.flags = int(header.flags) & ~int(Flag.RETRANSMISSION | Flag.TELL_ALL)
    header.job, header.round = job, round
    below = Ether(src=here.mac, dst=switch.mac) / IP(src=here.ip, dst=switch.ip, id=0, flags="DF")
    moved: Packet = below / UDP(sport=here.udp_port, dport=switch.udp_port, chksum=0) / header
    return moved


def message_of(header: Packet) -> npt.NDArray[np.uint8]:
    """Return a result's header for ranks that lack it, who get both halves as one."""
    kept: Any = header.copy()
    kept.remove_payload()
    kept.flags = int(kept.flags) & ~int(_HALVES)
    return np.frombuffer(bytes(kept), np.uint8)


def read_answer(
    frame: bytes, here: Endpoint, switch: Endpoint, *, job: int, rank: int
) -> Packet | None:
    """Parse a frame. Return the `Aggregation` layer of an answer to this rank, or None.

    "What is an answer": a frame from the switch's MAC and IP address and port 0xBEE0 to the own IP
    address and port. It has the own job and rank, and the length that its kind and flags ask for.
    """
    if len(frame) < EMPTY_FRAME_BYTES:
        return None
    packet = Ether(frame)
    if packet.layers()[:4] != [Ether, IP, UDP, Aggregation]:
        return None
    ip, udp, header = packet[IP], packet[UDP], packet[Aggregation]
    if packet.src != switch.mac.lower() or ip.ihl != 5 or ip.flags.MF or ip.frag:
        return None
    if (ip.src, udp.sport) != (switch.ip, switch.udp_port):
        return None
    if (ip.dst, udp.dport) != (here.ip, here.udp_port):
        return None
    if (header.version, header.job, header.rank) != (AGGREGATION_VERSION, job, rank):
        return None
    return header if len(frame) == _length(header.kind, Flag(int(header.flags))) else None


def _length(kind: int, flags: Flag) -> int | None:
    """Return how long an answer is; None: there is none with such flags."""
    if kind == FrameKind.STATUS:
        return EMPTY_FRAME_BYTES
    if kind != FrameKind.RESULT or flags & ~_OF_RESULTS or flags & _HALVES == _HALVES:
        return None
    if not flags & Flag.PAYLOAD:
        return None if flags & _HALVES else EMPTY_FRAME_BYTES
    return HALF_FRAME_BYTES if flags & _HALVES else PAYLOAD_FRAME_BYTES


def lanes_of(frame: bytes) -> bytes:
    """Return the bytes after the headers."""
    return frame[PAYLOAD_OFFSET:]


def parts_of(flags: Flag) -> frozenset[str]:
    """Return which part of a block's sums a RESULT carries."""
    if flags & Flag.FIRST_HALF:
        return FIRST_HALF
    return SECOND_HALF if flags & Flag.SECOND_HALF else WHOLE


def describe(frame: Packet) -> str:
    """Return a frame's contents in words: "CONTRIBUTE slot 0 round 1 block 0 next 1 PAYLOAD"."""
    header = frame[Aggregation]
    block, after = (
        "none" if number == NO_BLOCK else number for number in (header.block, header.next_block)
    )
    kind = FrameKind(header.kind).name
    said = f"slot {header.slot} round {header.round} block {block} next {after} {header.flags}"
    heard = "" if header.kind == FrameKind.CONTRIBUTE else f" heard {header.contributors:b}"
    return f"{kind:10} {said.rstrip()}{heard}"
