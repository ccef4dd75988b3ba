# SPDX-License-Identifier: Apache-2.0
"""The control API's messages as plain data, for `--json`.

protobuf's own JSON mapping writes 64-bit numbers as strings and leaves zeros out; scripts want
neither. Field names are those of control.proto.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """Return `message` with all its fields; enums as their names in lower case."""
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if isinstance(value, MutableSequence):  # protobuf 7 has no `label` that says so
        return [_single(field, item) for item in value]
    return _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name.lower()
    return value
