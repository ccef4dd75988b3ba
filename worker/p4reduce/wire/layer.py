# SPDX-License-Identifier: Apache-2.0
"""The aggregation header as a layer of scapy's, made of `header.HEADER_FIELDS`.

For those who take frames apart or make odd ones. Of scapy, only fields and packets are imported
here. Its Ethernet and IP layers read all interfaces and routes of the machine when they are
imported, which takes seconds where there are hundreds of interfaces; only `wire/dissect.py` imports
them.
"""

from __future__ import annotations

from typing import Any

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

from p4reduce.wire.format import HEADER_FIELDS, Flag, Format, FrameKind, HeaderField

# Whole bytes, by width and whether they are shown as hexadecimal.
_WHOLE = {
    (8, False): ByteField,
    (16, False): ShortField,
    (32, False): IntField,
    (32, True): XIntField,
    (64, True): XLongField,
}


def _layer_field(field: HeaderField) -> Any:
    name, bits, default, hexadecimal = field.name, field.bits, field.default, field.hexadecimal
    if name == "kind":
        return BitEnumField(name, default, bits, {int(kind): kind.name for kind in FrameKind})
    if name == "flags":
        return FlagsField(name, default, bits, [str(flag.name) for flag in Flag])
    if name == "format":
        return ByteEnumField(name, default, {int(lanes): lanes.name for lanes in Format})
    if bits % 8:
        return BitField(name, default, bits)
    return _WHOLE[bits, hexadecimal](name, default)


class Aggregation(Packet):
    """The `AGG_BYTES` after UDP. What follows them, if anything, is a block's lanes.

    `wire/dissect.py` binds it to UDP's port, so that scapy finds it in a frame.
    """

    name = "Aggregation"
    fields_desc = [_layer_field(field) for field in HEADER_FIELDS]  # noqa: RUF012  # scapy's own
