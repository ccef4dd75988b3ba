# SPDX-License-Identifier: Apache-2.0
"""The hash algorithms (programs/hashes.p4)."""

from __future__ import annotations

import binascii
import json
import random
import struct
import zlib

import pytest
from p4reduce_switch.program.hashes import ALGORITHMS
from pipeline_programs import config, load, make

pytestmark = pytest.mark.usefixtures("engine")

# The check values of the CRC catalogue are those of "123456789".
CHECKS = {
    "crc16": 0xBB3D,
    "crc16_custom": 0xBB3D,
    "crc32": 0xCBF43926,
    "crc32_custom": 0xCBF43926,
    "crcCCITT": 0x29B1,
    "identity": 0x3132333435363738,
    "xor16": 0x3132 ^ 0x3334 ^ 0x3536 ^ 0x3738 ^ 0x3900,
    "xor32": 0x31323334 ^ 0x35363738 ^ 0x39000000,
    "csum16": 0xFFFF - (0x3132 + 0x3334 + 0x3536 + 0x3738 + 0x3900 - 0xFFFF),
    "cksum16": 0xFFFF - (0x3132 + 0x3334 + 0x3536 + 0x3738 + 0x3900 - 0xFFFF),
}


def test_each_algorithm_has_its_check_value() -> None:
    assert set(ALGORITHMS) == set(CHECKS)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_check_values(name: str) -> None:
    assert ALGORITHMS[name](b"123456789") == CHECKS[name]


def test_hashes_of_fields() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    data = random.Random(seed).randbytes(7)
    ((_, out),) = load("hashes").process(0, data + b"tail")
    words = struct.unpack(">3HB", data)
    csum = -int.from_bytes(data + b"\0", "big") % 0xFFFF
    wanted = struct.pack(
        ">IIHHQHH",
        zlib.crc32(data),
        binascii.crc32(data),
        ALGORITHMS["crc16"](data),
        ALGORITHMS["crc16"](data),
        int.from_bytes(data, "big"),
        csum,
        words[0] ^ words[1] ^ words[2] ^ words[3] << 8,
    )
    assert out == wanted + data + b"tail"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_algorithm_of_fields(name: str) -> None:
    """In the place of `identity`, whose field is the widest; P4 cannot name all of them."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    program = json.loads(config("hashes"))
    (last,) = (one for one in program["calculations"] if one["algo"] == "identity")
    last["algo"] = name
    pipeline = make(json.dumps(program))
    for _ in range(20):
        data = generator.randbytes(7)
        ((_, out),) = pipeline.process(0, data)
        assert struct.unpack_from(">Q", out, 12) == (ALGORITHMS[name](data),)
