# SPDX-License-Identifier: Apache-2.0
"""Digests by P4Runtime: their configuration, and the lists on the stream.

P4Runtime 1.4.1, "DigestEntry" and "Digest Messages".
"""

from __future__ import annotations

import time
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import already_exists, invalid, not_found
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.entities.common import BYTES_PER_MESSAGE, find, selected
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.p4info import DigestSpec
from p4reduce_switch.state.digests import DigestConfig, Sample

_Update = p4runtime_pb2.Update


def plan_digest(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `DigestEntry` update."""
    spec = find(config.p4info.digests, message.digest_id, "digest")
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
        wanted = DigestConfig(
            given.max_timeout_ns,
            given.max_list_size,
            given.ack_timeout_ns,
            most_samples=max(1, BYTES_PER_MESSAGE // _sample_bytes(spec)),
        )

    def configure() -> None:
        if update_type == _Update.INSERT and digest.config is not None:
            raise already_exists(f"digest '{spec.name}' is configured already; use MODIFY")
        if update_type != _Update.INSERT and digest.config is None:
            raise not_found(f"digest '{spec.name}' is not configured")
        digest.configure(wanted)

    return configure


def _sample_bytes(spec: DigestSpec) -> int:
    """At most, in a message."""
    return sum(16 + width // 8 for width in spec.widths) + 16


def query_digests(config: ForwardingConfig, message: Any) -> Query:
    """Query the configuration of one digest, or of all that have one."""
    wanted = message.digest_id
    specs = selected(config.p4info.digests, wanted, "digest")

    def snapshot() -> list[Any]:
        configs = [(spec.id, config.pipeline.digests[spec.loaded].config) for spec in specs]
        rows = [row for row in configs if row[1] is not None]
        if wanted and not rows:
            raise not_found(f"digest '{specs[0].name}' is not configured")
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
    """Return the operation of a `DigestListAck`."""
    spec = find(config.p4info.digests, message.digest_id, "digest")
    digest = config.pipeline.digests[spec.loaded]
    list_id = message.list_id
    return lambda: digest.acknowledge(list_id)


def digest_message(spec: DigestSpec, list_id: int, samples: list[Sample]) -> Any:
    """Return the `StreamMessageResponse` of a digest list."""
    response = p4runtime_pb2.StreamMessageResponse()
    out = response.digest
    out.digest_id = spec.id
    out.list_id = list_id
    out.timestamp = time.time_ns()
    for sample in samples:
        data = out.data.add()
        values = [
            _encode(value & (1 << width) - 1, width, signed)
            for value, (width, signed) in zip(sample, spec.fields, strict=True)
        ]
        if spec.shape == "bitstring":
            (data.bitstring,) = values
        else:
            members = getattr(data, spec.shape).members
            for value in values:
                members.add(bitstring=value)
    return response


def _encode(bits: int, width: int, signed: bool) -> bytes:
    return bytestrings.encode_signed(bits, width) if signed else bytestrings.encode(bits)
