# SPDX-License-Identifier: Apache-2.0
"""A packet within the switch, and how headers come out of frames and go back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from p4reduce_switch.program.ir import FieldList, HeaderInstance
from p4reduce_switch.state.clone_sessions import UNLIMITED

Kept: TypeAlias = dict[str, int]
"""A part of a packet: values by field."""


class PacketState(dict[str, int]):
    """The values of all fields, by name ("ipv4.ttl").

    Attributes:
        valid: the headers that are there, and all metadata.
        frame: the bytes that came in. at: how many of them the parser has consumed.
        length: the frame's bytes, and those of headers that were added or removed.
        most: how many bytes may leave.
        args: of the action that runs.
        digest: the name of the one to send, or "".
        clone: the session and the field list of the clone that was asked for.
        resubmit, recirculate: the field list, if it was asked for.
    """

    valid: set[str]
    frame = b""
    at = length = 0
    most = UNLIMITED
    args: tuple[int, ...] = ()
    digest = ""
    clone: tuple[int, FieldList] | None = None
    resubmit: FieldList | None = None
    recirculate: FieldList | None = None

    @classmethod
    def blank(cls, headers: Iterable[HeaderInstance]) -> PacketState:
        """Return a packet without bytes, whose fields are zero."""
        headers = list(headers)
        packet = cls({str(field): 0 for header in headers for field in header.fields})
        packet.valid = {header.name for header in headers if header.is_metadata}
        return packet

    def copy(self) -> PacketState:
        """Return the same packet; it asks for nothing yet."""
        other = PacketState(self)
        other.valid = set(self.valid)
        other.frame, other.at = self.frame, self.at
        other.length, other.most = self.length, self.most
        return other

    @property
    def payload(self) -> bytes:
        return self.frame[self.at :]

    def kept(self, fields: FieldList) -> Kept:
        """Return the values of fields."""
        return {(key := str(field)): self[key] for field in fields.fields}


_Parts: TypeAlias = tuple[int, list[tuple[str, int, int]]]
"""The bytes of a header; of each field its name, the bits behind it, and the mask of its own."""


class HeaderLayout:
    """How a header stands in frames.

    Attributes:
        state: the names of all fields that a copy includes.
        zeros: its fields, all zero.
        fixed_size: the bytes without a varbit field. most_bytes: those with the longest.
    """

    def __init__(self, header: HeaderInstance) -> None:
        self.name = header.name
        self.state = list(map(str, header.state))
        self.zeros = dict.fromkeys(map(str, header.fields), 0)
        self.fixed_size, self.most_bytes = header.size, header.most_bytes
        self._header = header
        self._length = None if header.varbit is None else str(header.varbit.length)
        self._signed = [(str(f), 1 << f.width - 1) for f in header.fields if f.signed]
        self._parts: dict[int, _Parts] = {}  # by the bits of the varbit field

    def parts(self, packet: PacketState) -> _Parts:
        """Return the layout that the header has at present."""
        varbits = 0 if self._length is None else packet[self._length]
        parts = self._parts.get(varbits)
        if parts is None:
            parts = self._parts[varbits] = self._parts_with(varbits)
        return parts

    def _parts_with(self, varbits: int) -> _Parts:
        parts, behind, varbit = [], 0, self._header.varbit
        for field in reversed(self._header.fields):
            width = varbits if varbit is not None and field == varbit.field else field.width
            parts.append((str(field), behind, (1 << width) - 1))
            behind += width
        return behind // 8, parts

    def size(self, packet: PacketState) -> int:
        """Return how many bytes the header has at present."""
        return self.parts(packet)[0]

    def take(self, packet: PacketState) -> None:
        """Set the fields from the frame at the parser's place."""
        size, parts = self.parts(packet)
        bits = int.from_bytes(packet.frame[packet.at : packet.at + size], "big")
        for key, behind, mask in parts:
            packet[key] = bits >> behind & mask
        for key, half in self._signed:
            packet[key] = (packet[key] ^ half) - half
        packet.valid.add(self.name)
        packet.at += size

    def pack(self, packet: PacketState) -> bytes:
        """Return the bytes of the header."""
        size, parts = self.parts(packet)
        bits = 0
        for key, behind, mask in parts:
            bits |= (packet[key] & mask) << behind
        return bits.to_bytes(size, "big")
