# SPDX-License-Identifier: Apache-2.0
"""Entities of a Read: each becomes a query of its kind (`entities/registry.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.entities.registry import ENTITIES

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.entities.kinds import Query

__all__ = ["plan"]


def plan(config: ForwardingConfig, entity: Any) -> Query:
    """The query of one `p4.v1.Entity` of a ReadRequest.

    Raises:
        P4RuntimeError: the request is malformed or of a kind that is not supported.
    """
    kind = entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the entity is empty; set the kind of entity to read")
    return ENTITIES[kind].query(config, getattr(entity, kind))
