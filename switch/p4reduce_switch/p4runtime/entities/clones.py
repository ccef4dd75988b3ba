# SPDX-License-Identifier: Apache-2.0
"""Clone sessions by P4Runtime ("CloneSessionEntry" of the packet replication engine).

BMv2's server refuses a class of service and a length; here both are accepted. Copies are cut to the
length. The class is kept and given back, as there are no priority queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime.entities.kinds import Operation, Query
from p4reduce_switch.p4runtime.entities.replicas import decode_replicas, encode_replicas
from p4reduce_switch.state.clone_sessions import (
    MAX_SESSION_ID,
    CloneSession,
    NoSuchSession,
    SessionExists,
)

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.state.multicast import Replica

__all__ = ["plan_session", "query_sessions"]

_Update = p4runtime_pb2.Update

_Row = tuple[int, CloneSession, frozenset["Replica"]]


def plan_session(config: ForwardingConfig, update_type: int, message: Any) -> Operation:
    """The operation of an update of a `CloneSessionEntry`."""
    number = message.session_id
    if number == 0:
        raise invalid("session_id 0 means all sessions; use 1 or above")
    if number > MAX_SESSION_ID:
        raise P4RuntimeError(
            code_pb2.OUT_OF_RANGE, f"session_id {number} is above the maximum of {MAX_SESSION_ID}"
        )
    sessions, forms = config.pipeline.clone_sessions, config.clone_forms
    if update_type == _Update.DELETE:

        def delete() -> None:
            try:
                sessions.delete(number)
            except NoSuchSession:
                raise _absent(number) from None
            forms.pop(number, None)

        return delete

    if message.packet_length_bytes < 0:
        raise invalid(
            f"packet_length_bytes of clone session {number} is {message.packet_length_bytes}; "
            "0 means whole packets"
        )
    replicas, form = decode_replicas(message.replicas, f"clone session {number}")
    session = CloneSession(replicas, message.class_of_service, message.packet_length_bytes)

    def change() -> None:
        try:
            if update_type == _Update.INSERT:
                sessions.insert(number, session)
            else:
                sessions.modify(number, session)
        except SessionExists:
            raise P4RuntimeError(
                code_pb2.ALREADY_EXISTS,
                f"clone session {number} already exists; use MODIFY to change it",
            ) from None
        except NoSuchSession:
            raise _absent(number) from None
        forms[number] = form

    return change


def query_sessions(config: ForwardingConfig, message: Any) -> Query:
    """One session, or all of them for id 0."""
    wanted = message.session_id
    sessions, forms = config.pipeline.clone_sessions, config.clone_forms

    def snapshot() -> list[_Row]:
        present = sessions.sessions()
        if wanted and wanted not in present:
            raise _absent(wanted)
        numbers = [wanted] if wanted else sorted(present)
        return [(number, present[number], forms.get(number, frozenset())) for number in numbers]

    return Query(snapshot, _encode)


def _encode(row: _Row) -> Any:
    number, session, as_bytes = row
    entity = p4runtime_pb2.Entity()
    out = entity.packet_replication_engine_entry.clone_session_entry
    out.session_id = number
    out.class_of_service = session.class_of_service
    out.packet_length_bytes = session.packet_length_bytes
    encode_replicas(session.replicas, as_bytes, out.replicas)
    return entity


def _absent(number: int) -> P4RuntimeError:
    return P4RuntimeError(code_pb2.NOT_FOUND, f"clone session {number} does not exist")
