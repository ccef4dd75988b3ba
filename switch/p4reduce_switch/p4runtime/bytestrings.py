# SPDX-License-Identifier: Apache-2.0
"""Unsigned integers as P4Runtime byte strings (P4Runtime 1.4.1, section "Bytestrings").

On the wire an integer is big endian. The canonical form, which a server must send, is the shortest
one; a receiver accepts any number of leading zero bytes and checks the *value* against the width in
bits.
"""

from __future__ import annotations

from p4reduce_switch.errors import invalid

_SHOWN_HEX_DIGITS = 32


def format_value(value: int) -> str:
    """Return `value` in hexadecimal for messages; wide values are cut to their leading digits."""
    digits = f"{value:x}"
    if len(digits) <= _SHOWN_HEX_DIGITS:
        return f"0x{digits}"
    return f"0x{digits[:_SHOWN_HEX_DIGITS]}... ({value.bit_length()} bits)"


def decode(data: bytes, width: int, where: str) -> int:
    """Return the integer in `data`, which must fit into `width` bits.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, `data` is empty, or its value needs more than `width`
            bits. The message begins with `where`.
    """
    if not data:
        raise invalid(
            f"{where}: the byte string is empty; a {width}-bit value takes at least one byte, "
            "zero is one zero byte"
        )
    value = int.from_bytes(data, "big")
    if value >> width:
        raise invalid(
            f"{where}: value {format_value(value)} takes {value.bit_length()} bits, "
            f"but only {width} are allowed (at most {format_value((1 << width) - 1)})"
        )
    return value


def decode_signed(data: bytes, width: int, where: str) -> int:
    """Return the two's complement number in `data`, which must fit into `width` bits. Raises as
    `decode`."""
    if not data:
        return decode(data, width, where)
    value = int.from_bytes(data, "big", signed=True)
    if not -1 << (width - 1) <= value < 1 << (width - 1):
        raise invalid(
            f"{where}: value {value} does not fit into a signed number of {width} bits, "
            f"{-1 << (width - 1)} to {(1 << (width - 1)) - 1}"
        )
    return value


def encode_signed(bits: int, width: int) -> bytes:
    """Return the canonical (shortest) byte string of a two's complement number of `width` bits."""
    value = bits - (1 << width) if bits >> (width - 1) & 1 else bits
    needed = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((needed + 7) // 8, "big", signed=True)


def encode(value: int) -> bytes:
    """Return the canonical (shortest) byte string of a non-negative integer; zero is one zero
    byte."""
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")
