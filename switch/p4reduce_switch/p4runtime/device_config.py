# SPDX-License-Identifier: Apache-2.0
"""The program in a `ForwardingPipelineConfig`: p4c's JSON, plain or in an old envelope.

BMv2's server also accepts a serialised `p4.tmp.P4DeviceConfig` (p4lang/PI), which p4lang/tutorials
sends. The JSON is its field 3, `device_data`. Its field 2, `extras`, has a map of strings as its
only field. In it, "entries" is what p4c writes to --p4runtime-entries-files, as text. Nothing
else is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_VARINT, _BYTES = 0, 2
_KINDS = {1: _VARINT, 2: _BYTES, 3: _BYTES}
_EXTRAS, _DEVICE_DATA = 2, 3
_ENTRIES = b"entries"


def program_of(device_config: bytes) -> bytes:
    """Return the JSON in a `p4_device_config`, or the whole of it if it is no envelope."""
    return _read(device_config)[0]


def entries_of(device_config: bytes) -> bytes:
    """Return the entries file in a `p4_device_config`; empty if there is none."""
    return _read(device_config)[1]


def _read(message: bytes) -> tuple[bytes, bytes]:
    try:
        fields = dict(_fields(message, _KINDS))
    except (IndexError, ValueError):
        return message, b""
    if _DEVICE_DATA not in fields:
        return message, b""
    return fields[_DEVICE_DATA], _entries(fields.get(_EXTRAS, b""))


def _entries(extras: bytes) -> bytes:
    try:
        for _, pair in _fields(extras, {1: _BYTES}):
            parts = dict(_fields(pair, {1: _BYTES, 2: _BYTES}))
            if parts.get(1) == _ENTRIES:
                return parts.get(2, b"")
    except (IndexError, ValueError):
        pass  # another kind of extras, which BMv2's server would not read either
    return b""


def _fields(message: bytes, kinds: Mapping[int, int]) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each field; of numbers nothing.

    Raises IndexError or ValueError: it is no message with these fields only.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if kinds.get(tag >> 3) != tag & 7:
            raise ValueError("another message")
        value, at = _varint(message, at)
        if tag & 7 == _BYTES:
            if value > len(message) - at:
                raise ValueError("cut short")
            yield tag >> 3, message[at : at + value]
            at += value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no varint")
