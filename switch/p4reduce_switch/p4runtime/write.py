# SPDX-License-Identifier: Apache-2.0
"""Updates of a Write: each becomes an operation of its entity's kind (`entities/registry.py`).

`plan` checks all of an update that does not depend on the pipeline's state and returns what is left
to do. That is short, so that the data plane, which runs it between two packets, is not held up by
protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.entities.registry import ENTITIES

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.entities.kinds import Operation

__all__ = ["plan"]

_Update = p4runtime_pb2.Update


def plan(config: ForwardingConfig, update: Any) -> Operation:
    """Check one `p4.v1.Update` and return the operation that carries it out.

    Raises:
        P4RuntimeError: the update is malformed. The operation raises the same for what the
            pipeline's state refuses.
    """
    kind = update.entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the update has no entity")
    if update.type not in (_Update.INSERT, _Update.MODIFY, _Update.DELETE):
        raise invalid(
            f"update type {update.type} is not one of INSERT (1), MODIFY (2) and DELETE (3)"
        )
    return ENTITIES[kind].plan(config, update.type, getattr(update.entity, kind))
