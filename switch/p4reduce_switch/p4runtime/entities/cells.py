# SPDX-License-Identifier: Apache-2.0
"""What counters, meters and registers have in common: a cell by its index, changed by MODIFY."""

from __future__ import annotations

from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid

__all__ = ["indices", "only_modify"]

_Update = p4runtime_pb2.Update


def indices(what: str, size: int, message: Any) -> range:
    """The cells that a message is about: that of its index, or all; `what` has them."""
    if not message.HasField("index"):
        return range(size)
    index = message.index.index
    if index < 0:
        raise invalid(f"index {index} of {what} is negative")
    if index >= size:
        raise P4RuntimeError(
            code_pb2.OUT_OF_RANGE, f"index {index} of {what} is not within 0 to {size - 1}"
        )
    return range(index, index + 1)


def only_modify(update_type: int, what: str) -> None:
    """Refuse INSERT and DELETE of what is always there."""
    if update_type != _Update.MODIFY:
        raise invalid(f"{_Update.Type.Name(update_type)} of {what}: it can only be MODIFYed")
