# SPDX-License-Identifier: Apache-2.0
"""Replicas of multicast groups and clone sessions: ports and instances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.state.multicast import Replica

__all__ = ["decode_replicas", "encode_replicas"]

_MAX_INSTANCE = (1 << 16) - 1  # egress_rid is a bit<16> in v1model
_PORT_WIDTH = 9  # bits of a port in v1model


def decode_replicas(messages: Any, owner: str) -> tuple[tuple[Replica, ...], frozenset[Replica]]:
    """The replicas, and those of them whose port was given as bytes."""
    replicas: list[Replica] = []
    as_bytes: set[Replica] = set()
    for message in messages:
        where = f"replica {len(replicas)} of {owner}"
        kind = message.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{where} has no port; set egress_port, or port")
        if kind == "port":
            try:
                port = bytestrings.decode(message.port, _PORT_WIDTH)
            except bytestrings.BytestringError as error:
                raise invalid(f"{where}, port: {error}") from None
        else:
            port = message.egress_port
        if port >> _PORT_WIDTH:
            raise invalid(f"{where}: port {port} is not within 0 to {(1 << _PORT_WIDTH) - 1}")
        if message.instance > _MAX_INSTANCE:
            raise invalid(f"{where}: instance {message.instance} is above {_MAX_INSTANCE}")
        replica = Replica(port, message.instance)
        if replica in replicas:
            raise invalid(f"{where}: port {port}, instance {message.instance} is already a replica")
        replicas.append(replica)
        if kind == "port":
            as_bytes.add(replica)
    return tuple(replicas), frozenset(as_bytes)


def encode_replicas(
    replicas: Iterable[Replica], as_bytes: frozenset[Replica], messages: Any
) -> None:
    """Add replicas to a repeated field, each port in the form that it was given."""
    for replica in replicas:
        message = messages.add(instance=replica.instance)
        if replica in as_bytes:
            message.port = bytestrings.encode(replica.port)
        else:
            message.egress_port = replica.port
