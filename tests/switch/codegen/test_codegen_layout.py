# SPDX-License-Identifier: Apache-2.0
"""Header layouts: random headers through generated unpacking and packing, bit for bit."""

from __future__ import annotations

import random
from struct import Struct

import pytest
from p4reduce_switch.codegen_python.layout import HeaderLayout
from p4reduce_switch.codegen_python.text import PyNames
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
        values[f"h_{field.name}"] = value
    return values


@pytest.mark.parametrize("rebuilt", [True, False])
def test_random_headers(rebuilt: bool) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        header = random_header(generator)
        needed = {field for field in header.fields if generator.random() < 0.5}
        names = PyNames()
        layout = HeaderLayout(names, header, needed.__contains__, rebuilt)
        assert needed <= set(layout.ints)
        data = generator.randbytes(header.size)
        start = generator.randrange(4)
        frame = b"\xa5" * start + data + b"\x5a" * generator.randrange(3)
        scope: dict[str, object] = {"Struct": Struct, "from_bytes": int.from_bytes, "frame": frame}
        lines = [*layout.definitions, *layout.unpack("frame", str(start))]
        if rebuilt:
            lines.append(f"packed = {layout.pack()}")
        text = "\n".join(lines)
        scope.update((name, value) for value, name in names.constants.items())
        exec(text, scope)
        expected = wire_values(header, data)
        for field in layout.ints:
            assert scope[f"h_{field.name}"] == expected[f"h_{field.name}"], (field, text)
        if rebuilt:
            assert scope["packed"] == data, text


def test_nothing_is_unpacked_that_nobody_needs() -> None:
    header = HeaderInstance(
        "h", (FieldRef("h", "a", 48), FieldRef("h", "b", 16)), is_metadata=False
    )
    layout = HeaderLayout(PyNames(), header, lambda _: False, rebuilt=False)
    assert layout.unpack("frame", "0") == []
    only_b = HeaderLayout(PyNames(), header, lambda field: field.name == "b", rebuilt=False)
    assert only_b.unpack("frame", "14") == ["h_b, = _layout_h.unpack_from(frame, 14)"]
    assert only_b.definitions == ['_layout_h = Struct(">6xH")']


def test_a_header_without_fields() -> None:
    layout = HeaderLayout(
        PyNames(), HeaderInstance("h", (), is_metadata=False), lambda _: True, rebuilt=True
    )
    assert layout.unpack("frame", "0") == []
    scope: dict[str, object] = {"Struct": Struct}
    exec("\n".join([*layout.definitions, f"packed = {layout.pack()}"]), scope)
    assert scope["packed"] == b""
