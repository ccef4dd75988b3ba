# SPDX-License-Identifier: Apache-2.0
"""The hash algorithms of v1model, over bytes, with BMv2's parameters."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable, Mapping
from functools import partial


def csum16(data: bytes) -> int:
    """Compute the Internet checksum (RFC 1071). An odd number of bytes is padded with a zero.

    A one's complement sum is a sum modulo 65535, because 2**16 = 1 there. So one division of one
    large integer is enough. The sum has two zeros: 0 for empty input, 0xFFFF otherwise.
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


def _xor(size: int, data: bytes) -> int:
    """The words of `size` bytes, a shorter one at the end padded with zeros, exclusive-ored."""
    data += bytes(-len(data) % size)
    value = 0
    for index in range(0, len(data), size):
        value ^= int.from_bytes(data[index : index + size], "big")
    return value


# By the names of the C functions: how many bits a hash has, and what computes it.
_FUNCTIONS: Mapping[str, tuple[int, Callable[[bytes], int]]] = {
    "csum16": (16, csum16),
    "crc16": (16, _crc16),
    "crc32": (32, zlib.crc32),
    "crcCCITT": (16, _crc_ccitt),
    "identity": (64, _identity),
    "xor16": (16, partial(_xor, 2)),
    "xor32": (32, partial(_xor, 4)),
}
# The parameters of custom CRCs can be changed in BMv2 by Thrift, but not by P4Runtime: so they are
# what they start with, those of the plain ones.
_SECOND_NAMES = {"cksum16": "csum16", "crc16_custom": "crc16", "crc32_custom": "crc32"}

C_NAMES: Mapping[str, str] = {**{name: name for name in _FUNCTIONS}, **_SECOND_NAMES}
ALGORITHMS = {name: _FUNCTIONS[function][1] for name, function in C_NAMES.items()}
BITS = {name: _FUNCTIONS[function][0] for name, function in C_NAMES.items()}
