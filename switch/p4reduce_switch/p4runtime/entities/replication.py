# SPDX-License-Identifier: Apache-2.0
"""The packet replication engine by P4Runtime: multicast groups and clone sessions.

BMv2's server refuses a class of service and a length of clone sessions; here both are accepted.
Copies are cut to the length. The class is kept and given back, and no more: queues go by what the
program makes of `priority`, as in simple_switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import invalid, out_of_range
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.p4runtime.config import ForwardingConfig, ReplicaForm
from p4reduce_switch.p4runtime.entities.common import refuse_unsupported
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.clone_sessions import MAX_SESSION_ID, CloneSession
from p4reduce_switch.state.multicast import Replica, ReplicaSets

_Update = p4runtime_pb2.Update
_MAX_INSTANCE = (1 << 16) - 1  # egress_rid is a bit<16> in v1model
_PORT_WIDTH = 9  # bits of a port in v1model
# BMv2's server keeps the upper half of the group ids for clone sessions.
_MAX_GROUP_ID = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class _ReplicationKind:
    """One field of `PacketReplicationEngineEntry`, and what it is in the pipeline.

    Attributes:
        what: such a thing is called.
        id_field: its field with the id, which is at most `most`.
        sets: all of a pipeline.
        decode: makes one of a message and its replicas.
        encode: fills a message with all but the replicas, and returns these.
    """

    what: str
    id_field: str
    most: int
    sets: Callable[[Pipeline], ReplicaSets[Any]]
    decode: Callable[[Any, tuple[Replica, ...]], Any]
    encode: Callable[[Any, Any], Iterable[Replica]]


def _decode_session(message: Any, replicas: tuple[Replica, ...]) -> CloneSession:
    if message.packet_length_bytes < 0:
        raise invalid(
            f"packet_length_bytes of clone session {message.session_id} is "
            f"{message.packet_length_bytes}; 0 means whole packets"
        )
    return CloneSession(replicas, message.class_of_service, message.packet_length_bytes)


def _encode_session(session: CloneSession, out: Any) -> Iterable[Replica]:
    out.class_of_service = session.class_of_service
    out.packet_length_bytes = session.packet_length_bytes
    return session.replicas


_KINDS = {
    "multicast_group_entry": _ReplicationKind(
        "multicast group",
        "multicast_group_id",
        _MAX_GROUP_ID,
        lambda pipeline: pipeline.multicast,
        lambda message, replicas: replicas,
        lambda replicas, out: replicas,
    ),
    "clone_session_entry": _ReplicationKind(
        "clone session",
        "session_id",
        MAX_SESSION_ID,
        lambda pipeline: pipeline.clone_sessions,
        _decode_session,
        _encode_session,
    ),
}


def plan_replication(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """Return the operation of a `PacketReplicationEngineEntry` update."""
    name, part = _part(message)
    kind = _KINDS[name]
    number = getattr(part, kind.id_field)
    if number == 0:
        raise invalid(f"{kind.id_field} 0 is the id of no {kind.what}; use 1 or above")
    if number > kind.most:
        raise out_of_range(f"{kind.id_field} {number} is above the maximum of {kind.most}")
    sets, forms, key = kind.sets(config.pipeline), config.replica_forms, (name, number)
    if update_type == _Update.DELETE:

        def delete() -> None:
            sets.delete(number)
            forms.pop(key, None)

        return delete

    replicas, as_bytes = _decode_replicas(part.replicas, f"{kind.what} {number}")
    item = kind.decode(part, replicas)
    form = ReplicaForm(getattr(part, "metadata", b""), as_bytes)
    change = sets.insert if update_type == _Update.INSERT else sets.modify

    def write() -> None:
        change(number, item)
        forms[key] = form

    return write


def query_replication(config: ForwardingConfig, message: Any) -> Query:
    """One group or session, or all of them for id 0."""
    name, part = _part(message)
    kind = _KINDS[name]
    wanted = getattr(part, kind.id_field)
    sets, forms = kind.sets(config.pipeline), config.replica_forms

    def snapshot() -> list[Any]:
        numbers = [wanted] if wanted else sorted(sets.all())
        return [(n, sets.get(n), forms.get((name, n), ReplicaForm())) for n in numbers]

    def encode(row: Any) -> Any:
        number, item, form = row
        entity = p4runtime_pb2.Entity()
        out = getattr(entity.packet_replication_engine_entry, name)
        setattr(out, kind.id_field, number)
        if form.metadata:
            out.metadata = form.metadata
        _encode_replicas(kind.encode(item, out), form.ports_as_bytes, out.replicas)
        return entity

    return Query(snapshot, encode)


def _part(message: Any) -> tuple[str, Any]:
    name = message.WhichOneof("type")
    if name is None:
        raise invalid("the packet_replication_engine_entry is empty; give a multicast_group_entry")
    return name, getattr(message, name)


# -- Replicas --------------------------------------------------------------------------------------


def _decode_replicas(messages: Any, owner: str) -> tuple[tuple[Replica, ...], frozenset[Replica]]:
    """The replicas, and those of them whose port was given as bytes."""
    replicas: list[Replica] = []
    as_bytes: set[Replica] = set()
    for message in messages:
        where = f"replica {len(replicas)} of {owner}"
        refuse_unsupported(message, ("backup_replicas",), where)
        kind = message.WhichOneof("port_kind")
        if kind is None:
            raise invalid(f"{where} has no port; set egress_port, or port")
        port = message.egress_port
        if kind == "port":
            port = bytestrings.decode(message.port, _PORT_WIDTH, f"{where}, port")
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


def _encode_replicas(
    replicas: Iterable[Replica], as_bytes: frozenset[Replica], messages: Any
) -> None:
    """Add replicas to a repeated field, each port in the form that it was given."""
    for replica in replicas:
        message = messages.add(instance=replica.instance)
        if replica in as_bytes:
            message.port = bytestrings.encode(replica.port)
        else:
            message.egress_port = replica.port
