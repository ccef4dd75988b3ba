# SPDX-License-Identifier: Apache-2.0
"""Digests by P4Runtime: their configuration, and the lists on the stream.

P4Runtime 1.4.1, "DigestEntry" and "Digest Messages".
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import names
from p4reduce_switch.state.digests import DigestConfig, Sample

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.p4info import DigestSpec

__all__ = ["digest_message", "plan_acknowledgement", "plan_digest", "query_digests"]

_Update = p4runtime_pb2.Update


def _find(config: ForwardingConfig, digest_id: int) -> DigestSpec:
    spec = config.p4info.digests.get(digest_id)
    if spec is None:
        raise invalid(
            f"this pipeline has no digest with id {digest_id:#x}; "
            f"its digests are {names(d.name for d in config.p4info.digests.values())}"
        )
    return spec


def plan_digest(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `DigestEntry`."""
    spec = _find(config, message.digest_id)
    digest = config.pipeline.digests[spec.loaded]
    wanted: DigestConfig | None = None
    if update_type != _Update.DELETE:
        given = message.config
        for field in ("max_timeout_ns", "max_list_size", "ack_timeout_ns"):
            if getattr(given, field) < 0:
                raise invalid(
                    f"{field} of digest '{spec.name}' is {getattr(given, field)}; it must not be "
                    "negative"
                )
        wanted = DigestConfig(given.max_timeout_ns, given.max_list_size, given.ack_timeout_ns)

    def configure() -> None:
        if update_type == _Update.INSERT and digest.config is not None:
            raise P4RuntimeError(
                code_pb2.ALREADY_EXISTS, f"digest '{spec.name}' is configured already; use MODIFY"
            )
        if update_type != _Update.INSERT and digest.config is None:
            raise P4RuntimeError(code_pb2.NOT_FOUND, f"digest '{spec.name}' is not configured")
        digest.configure(wanted)

    return configure


def query_digests(config: ForwardingConfig, message: Any) -> Query:
    """The configuration of one digest, or of all that have one."""
    wanted = message.digest_id
    specs = [_find(config, wanted)] if wanted else config.p4info.digests.values()
    selected = [(spec, config.pipeline.digests[spec.loaded]) for spec in specs]

    def snapshot() -> list[Any]:
        rows = [(spec.id, digest.config) for spec, digest in selected if digest.config is not None]
        if wanted and not rows:
            name = selected[0][0].name
            raise P4RuntimeError(code_pb2.NOT_FOUND, f"digest '{name}' is not configured")
        return rows

    def encode(row: Any) -> Any:
        entity = p4runtime_pb2.Entity()
        out = entity.digest_entry
        out.digest_id, given = row
        out.config.max_timeout_ns = given.max_timeout_ns
        out.config.max_list_size = given.max_list_size
        out.config.ack_timeout_ns = given.ack_timeout_ns
        out.config.SetInParent()
        return entity

    return Query(snapshot, encode)


def plan_acknowledgement(config: ForwardingConfig, message: Any) -> Operation:
    """The operation of a `DigestListAck`."""
    digest = config.pipeline.digests[_find(config, message.digest_id).loaded]
    list_id = message.list_id
    return lambda: digest.acknowledge(list_id)


def digest_message(spec: DigestSpec, list_id: int, samples: list[Sample]) -> Any:
    """The `StreamMessageResponse` of a list."""
    response = p4runtime_pb2.StreamMessageResponse()
    out = response.digest
    out.digest_id = spec.id
    out.list_id = list_id
    out.timestamp = time.time_ns()
    for sample in samples:
        data = out.data.add()
        values = [
            _encode(value, width, signed)
            for value, (width, signed) in zip(sample, spec.fields, strict=True)
        ]
        if spec.shape == "bitstring":
            (data.bitstring,) = values
        else:
            members = getattr(data, spec.shape).members
            for value in values:
                members.add(bitstring=value)
    return response


def _encode(value: int, width: int, signed: bool) -> bytes:
    """The shortest byte string ("Bytestrings")."""
    value &= (1 << width) - 1
    if not signed:
        return bytestrings.encode(value)
    if value >> (width - 1):
        value -= 1 << width
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)
