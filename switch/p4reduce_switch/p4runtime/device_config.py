# SPDX-License-Identifier: Apache-2.0
"""The program in a `ForwardingPipelineConfig`: p4c's JSON, plain or in an old envelope.

BMv2's server also accepts a serialised `p4.tmp.P4DeviceConfig` (p4lang/PI), which p4lang/tutorials
sends. The JSON is its field 3, `device_data`. The fields `reassign` (1) and `extras` (2) are
ignored.
"""

from __future__ import annotations

_VARINT, _BYTES = 0, 2
_FIELDS = {1: _VARINT, 2: _BYTES, 3: _BYTES}
_DEVICE_DATA = 3


def program_of(device_config: bytes) -> bytes:
    """Return the JSON in a `p4_device_config`, or the whole of it if it is no envelope."""
    try:
        return _device_data(device_config)
    except (IndexError, ValueError):
        return device_config


def _device_data(message: bytes) -> bytes:
    """Raises IndexError or ValueError: it is no P4DeviceConfig that has data."""
    data, at = None, 0
    while at < len(message):
        tag, at = _varint(message, at)
        if _FIELDS.get(tag >> 3) != tag & 7:
            raise ValueError("no field of P4DeviceConfig")
        value, at = _varint(message, at)
        if tag & 7 == _BYTES:
            if value > len(message) - at:
                raise ValueError("cut short")
            if tag >> 3 == _DEVICE_DATA:
                data = message[at : at + value]
            at += value
    if data is None:
        raise ValueError("no device_data")
    return data


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
