# SPDX-License-Identifier: Apache-2.0
"""Random headers taken out of frames and packed again, bit for bit."""

from __future__ import annotations

import random

from p4reduce_switch.interpreter.packet import HeaderLayout, PacketState
from p4reduce_switch.program.ir import FieldRef, HeaderInstance

WIDTHS = (1, 3, 4, 5, 7, 8, 9, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 128, 2048)


def random_header(generator: random.Random) -> HeaderInstance:
    widths = [generator.choice(WIDTHS) for _ in range(generator.randrange(1, 12))]
    if sum(widths) % 8:
        widths.append(8 - sum(widths) % 8)
    fields = [
        FieldRef("h", f"f{index}", width, width > 1 and generator.random() < 0.3)
        for index, width in enumerate(widths)
    ]
    return HeaderInstance("h", tuple(fields), is_metadata=False)


def wire_values(header: HeaderInstance, data: bytes) -> dict[str, int]:
    """The fields by cutting up the bits, without any of the code under test."""
    bits = "".join(f"{byte:08b}" for byte in data)
    values = {}
    at = 0
    for field in header.fields:
        value = int(bits[at : at + field.width], 2)
        at += field.width
        if field.signed and value >> (field.width - 1):
            value -= 1 << field.width
        values[str(field)] = value
    return values


def test_random_headers() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        header = random_header(generator)
        data = generator.randbytes(header.size)
        start = generator.randrange(4)
        packet, layout = PacketState.blank([header]), HeaderLayout(header)
        packet.frame, packet.at = b"\xa5" * start + data + b"\x5a", start
        layout.take(packet)
        assert (packet, packet.at) == (wire_values(header, data), start + header.size)
        assert packet.valid == {"h"}
        assert layout.pack(packet) == data


def test_a_header_without_fields() -> None:
    header = HeaderInstance("h", (), is_metadata=False)
    packet, layout = PacketState.blank([header]), HeaderLayout(header)
    layout.take(packet)
    assert (packet.valid, layout.pack(packet)) == ({"h"}, b"")
