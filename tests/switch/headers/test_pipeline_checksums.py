# SPDX-License-Identifier: Apache-2.0
"""Checksums and hashes (programs/checksums.p4), against straightforward implementations."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.hashes import csum16
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")

HASHES = 18  # bytes


@pytest.fixture
def pipeline() -> Pipeline:
    return load("checksums")


def internet_checksum(data: bytes) -> int:
    """RFC 1071, word by word."""
    if len(data) % 2:
        data += b"\0"
    total = 0
    for (word,) in struct.iter_unpack(">H", data):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(
    protocol: int, ttl: int = 64, ihl: int = 5, src: int = 0x0A000001, dst: int = 0x0A000002
) -> bytes:
    head = struct.pack(
        ">BBHHHBBHII", 0x40 | ihl, 3, 1234, 0x5678, 0x4001, ttl, protocol, 0, src, dst
    )
    return with_checksum(head)


def with_checksum(head: bytes) -> bytes:
    head = head[:10] + b"\0\0" + head[12:]
    return head[:10] + internet_checksum(head).to_bytes(2, "big") + head[12:]


def udp(ip: bytes, extra: bytes, payload: bytes) -> bytes:
    head = struct.pack(">HHH", 1000, 2000, 8 + len(payload))
    pseudo = ip[12:20] + b"\0" + ip[9:10] + head[4:6] + extra + head
    return head + internet_checksum(pseudo + payload).to_bytes(2, "big")


def run(pipeline: Pipeline, frame: bytes) -> tuple[bool, bytes]:
    """(checksum_error, the frame after the hashes)."""
    ((port, out),) = pipeline.process(1, frame)
    assert port == 2
    return bool(out[HASHES - 1]), out[HASHES:]


def test_right_checksum_and_update(pipeline: Pipeline) -> None:
    sent = ipv4(6)
    error, out = run(pipeline, sent + b"x")
    assert not error
    assert out == ipv4(6, ttl=63) + b"x"


def test_update_is_conditional(pipeline: Pipeline) -> None:
    broken = ipv4(6, ttl=1)[:10] + b"\x12\x34" + ipv4(6, ttl=1)[12:]
    error, out = run(pipeline, broken)
    assert error
    assert out == broken


def test_verification_is_conditional(pipeline: Pipeline) -> None:
    broken = ipv4(6, ihl=6)[:10] + b"\x12\x34" + ipv4(6, ihl=6)[12:]
    assert run(pipeline, broken)[0] is False


def test_every_bit_matters(pipeline: Pipeline) -> None:
    good = ipv4(6)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 0x80 >> bit % 8
        if bad[0] & 15 == 5 and bad[9] not in (17, 18):
            assert run(pipeline, bytes(bad))[0] is True, bit


@pytest.mark.parametrize("checksum", [0x0000, 0xFFFF])
def test_both_zeros_of_ones_complement(pipeline: Pipeline, checksum: int) -> None:
    """A header whose checksum is 0 must have 0, not 0xFFFF, though both are zero."""
    head = bytearray(ipv4(6))
    head[4:6] = (int.from_bytes(head[4:6], "big") + int.from_bytes(head[10:12], "big")).to_bytes(
        3, "big"
    )[1:]
    head[10:12] = b"\0\0"
    while internet_checksum(bytes(head)) != 0:  # at most once: the end-around carry
        head[5] = (head[5] + 1) % 256
    head[10:12] = checksum.to_bytes(2, "big")
    assert run(pipeline, bytes(head))[0] is (checksum != 0)


@pytest.mark.parametrize("payload", [b"", b"x", b"even", b"odd" * 101])
@pytest.mark.parametrize("extra", [b"", b"\x77"])
def test_checksum_with_payload(pipeline: Pipeline, payload: bytes, extra: bytes) -> None:
    ip = ipv4(18 if extra else 17)
    frame = ip + extra + udp(ip, extra, payload) + payload
    error, out = run(pipeline, frame)
    assert not error
    changed = ipv4(18 if extra else 17, ttl=63)
    assert out == changed + extra + udp(changed, extra, payload) + payload
    if payload:
        error, _ = run(pipeline, frame[:-1] + bytes([frame[-1] ^ 1]))
        assert error


def test_no_udp_checksum_is_left_alone(pipeline: Pipeline) -> None:
    frame = ipv4(17) + struct.pack(">HHHH", 1, 2, 8, 0)
    error, out = run(pipeline, frame)
    assert not error
    assert out == ipv4(17, ttl=63) + frame[20:]


def crc16(data: bytes) -> int:
    """CRC-16/ARC bit by bit."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value


def test_hashes(pipeline: Pipeline) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(50):
        src, dst = generator.getrandbits(32), generator.getrandbits(32)
        frame = ipv4(18, src=src, dst=dst) + b"\x5a" + bytes(8)
        ((_, out),) = pipeline.process(1, frame)
        crc_32, crc_16, csum, xored, ranged, ident = struct.unpack_from(">IHHHHI", out)
        addresses = frame[12:20]
        assert crc_32 == zlib.crc32(frame[12:16] + frame[8:9] + frame[16:20])
        assert crc_16 == crc16(addresses)
        # 3 bits of flags (010), then the addresses, the end padded with zeros.
        shifted = (2 << 64 | int.from_bytes(addresses, "big")) << 5
        assert csum == internet_checksum(shifted.to_bytes(9, "big"))
        words = struct.unpack(">5H", frame[8:9] + addresses + b"\0")
        assert xored == words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4]
        assert ranged == zlib.crc32(addresses) % 10 + 100
        assert ident == src
    assert crc16(b"123456789") == 0xBB3D


def test_csum16_against_rfc_1071() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for length in range(60):
        data = generator.choice((generator.randbytes(length), bytes(length), b"\xff" * length))
        assert csum16(data) == internet_checksum(data), data.hex()
