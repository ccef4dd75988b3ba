# SPDX-License-Identifier: Apache-2.0
"""Packet-in and packet-out: converts the `@controller_header` between bits and metadata fields.

P4Runtime 1.4.1, "Packet I/O". A message carries every field of the header exactly once, and no
others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, unsupported
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.p4info import PacketHeader, names
from p4reduce_switch.rate_limited_log import RateLimitedLog

_warnings = RateLimitedLog(logging.getLogger(__name__))


class PacketCodec:
    """Packs and unpacks one header of `P4Info.controller_packet_metadata`."""

    def __init__(self, header: PacketHeader) -> None:
        self.size = header.size
        self._strings = header.strings
        # (field, shift of its lowest bit, mask), in wire order; padding bits come last
        self._layout = []
        shift = 8 * header.size
        for field in header.fields:
            shift -= field.width
            self._layout.append((field, shift, (1 << field.width) - 1))
        self._by_id = {field.id: (field, shift) for field, shift, _ in self._layout}

    def packet_in(self, frame: bytes) -> Any | None:
        """Return the `StreamMessageResponse` of a frame that left by the CPU port.

        None if the header has strings, or if the frame is shorter than the header because the
        program did not emit it.
        """
        if self._strings:
            _warnings.warning("a packet-in was dropped: %s", self._why())
            return None
        if len(frame) < self.size:
            return None
        response = p4runtime_pb2.StreamMessageResponse()
        packet = response.packet
        packet.payload = frame[self.size :]
        bits = int.from_bytes(frame[: self.size], "big")
        for field, shift, mask in self._layout:
            packet.metadata.add(
                metadata_id=field.id, value=bytestrings.encode((bits >> shift) & mask)
            )
        return response

    def packet_out(self, payload: bytes, metadata: Iterable[Any]) -> bytes:
        """Return the frame to inject at the CPU port.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT, the metadata is not exactly that of the header;
                UNIMPLEMENTED, the header has strings.
        """
        if self._strings:
            raise unsupported(self._why())
        bits = 0
        seen = set()
        for item in metadata:
            if item.metadata_id not in self._by_id:
                raise invalid(
                    f"packet-out metadata id {item.metadata_id} is not in the P4Info; its fields "
                    f"are {names(f'{f.name} (id {f.id})' for f, _, _ in self._layout)}"
                )
            field, shift = self._by_id[item.metadata_id]
            if field.id in seen:
                raise invalid(f"packet-out metadata '{field.name}' is given more than once")
            seen.add(field.id)
            where = f"packet-out metadata '{field.name}' (id {field.id})"
            bits |= bytestrings.decode(item.value, field.width, where) << shift
        missing = [field.name for field, _, _ in self._layout if field.id not in seen]
        if missing:
            raise invalid(f"packet-out metadata is missing: {names(missing)}")
        return bits.to_bytes(self.size, "big") + payload

    def _why(self) -> str:
        return (
            f"metadata {names(self._strings)} of its header is translated to strings "
            "(p4runtime_translation), which is not supported"
        )
