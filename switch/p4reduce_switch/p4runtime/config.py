# SPDX-License-Identifier: Apache-2.0
"""A forwarding pipeline config as the server holds it: message, P4Info and loaded program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from p4reduce_switch.p4runtime.p4info import P4Info
from p4reduce_switch.p4runtime.packets import PacketCodec
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica


@dataclass(frozen=True, slots=True)
class ReplicaForm:
    """How a multicast group or clone session was written, which the pipeline need not know.

    A read must give back what was written, and `Replica` has two fields for one port.
    """

    metadata: bytes = b""
    ports_as_bytes: frozenset[Replica] = frozenset()


@dataclass(frozen=True, slots=True)
class ForwardingConfig:
    message: Any  # p4.v1.ForwardingPipelineConfig
    p4info: P4Info
    pipeline: Pipeline
    packet_in: PacketCodec
    packet_out: PacketCodec
    replica_forms: dict[tuple[str, int], ReplicaForm] = field(default_factory=dict)
    """By the field of the entity, and its id."""
