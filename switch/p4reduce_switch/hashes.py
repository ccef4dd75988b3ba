# SPDX-License-Identifier: Apache-2.0
"""The hash algorithms of v1model, over bytes, with BMv2's parameters."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable, Mapping

__all__ = ["ALGORITHMS", "csum16"]


def csum16(data: bytes) -> int:
    """The Internet checksum (RFC 1071); an odd number of bytes is padded with a zero.

    A one's complement sum is a sum modulo 65535, because 2**16 = 1 there, so one division of one
    large integer does it. Of the two zeros, 0xFFFF is the sum of anything but nothing.
    """
    value = int.from_bytes(data + b"\0" if len(data) % 2 else data, "big")
    return -value % 0xFFFF if value else 0xFFFF


def _crc16_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC16 = _crc16_table()


def _crc16(data: bytes) -> int:
    """CRC-16/ARC: polynomial 0x8005, reflected, initial value 0."""
    value = 0
    for byte in data:
        value = value >> 8 ^ _CRC16[(value ^ byte) & 0xFF]
    return value


def _crc_ccitt(data: bytes) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, not reflected, initial value 0xFFFF."""
    return binascii.crc_hqx(data, 0xFFFF)


def _identity(data: bytes) -> int:
    """The first 8 bytes as a number."""
    return int.from_bytes(data[:8], "big")


def _xor16(data: bytes) -> int:
    """The 16-bit words, an odd byte at the end padded with zero, exclusive-ored."""
    if len(data) % 2:
        data += b"\0"
    value = 0
    for index in range(0, len(data), 2):
        value ^= data[index] << 8 | data[index + 1]
    return value


ALGORITHMS: Mapping[str, Callable[[bytes], int]] = {
    "csum16": csum16,
    "crc16": _crc16,
    "crc32": zlib.crc32,
    "crcCCITT": _crc_ccitt,
    "identity": _identity,
    "xor16": _xor16,
}
