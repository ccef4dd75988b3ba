# SPDX-License-Identifier: Apache-2.0
"""What an entity of P4Runtime consists of for the server: how it is written, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig

__all__ = ["EntityKind", "Operation", "Query"]

Operation: TypeAlias = Callable[[], None]
"""What is left to do of an update. It runs in the data plane, between two packets."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query of one requested entity.

    Attributes:
        snapshot: copies the rows out of the pipeline; raises `P4RuntimeError` (NOT_FOUND). It runs
            in the data plane, between two packets.
        encode: makes a `p4.v1.Entity` of one row. It is slow, in pure-Python protobuf.
    """

    snapshot: Callable[[], list[Any]]
    encode: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class EntityKind:
    """One field of `p4.v1.Entity`.

    Attributes:
        name: the field's.
        plan: (config, type of the update, message) -> operation. Checks all that does not depend on
            the pipeline's state; raises `P4RuntimeError`, as the operation does for what that
            refuses.
        query: (config, message) -> query of the rows that match the message; raises
            `P4RuntimeError`.
    """

    name: str
    plan: Callable[[ForwardingConfig, int, Any], Operation]
    query: Callable[[ForwardingConfig, Any], Query]
