# SPDX-License-Identifier: Apache-2.0
"""Clone sessions by P4Runtime ("CloneSessionEntry" of the packet replication engine).

Where BMv2's server refuses a class of service and a length, both are taken here: copies are cut to
the length, and the class is kept and given back, as there are no priority queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.errors import P4RuntimeError, invalid
from p4reduce_switch.p4runtime import bytestrings
from p4reduce_switch.state.clone_sessions import (
    MAX_SESSION_ID,
    CloneSession,
    NoSuchSession,
    SessionExists,
)

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.state.multicast import Replica

__all__ = ["encode_replicas", "plan_session", "query_sessions"]

_Update = p4runtime_pb2.Update

_Row = tuple[int, CloneSession, frozenset["Replica"]]


def plan_session(
    config: ForwardingConfig,
    update_type: int,
    message: Any,
    decode: Callable[[Any, str], tuple[tuple[Replica, ...], frozenset[Replica]]],
) -> Callable[[], None]:
    """The operation of one update; `decode` takes replicas and how to call their owner.

    Raises:
        P4RuntimeError: the update is malformed. The operation raises it for what is not there, or
            already there.
    """
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
    replicas, form = decode(message.replicas, f"clone session {number}")
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


def query_sessions(
    config: ForwardingConfig, wanted: int
) -> tuple[Callable[[], list[_Row]], Callable[[_Row], Any]]:
    """Snapshot and encoder (`read.Query`) of one session, or of all for id 0."""
    sessions, forms = config.pipeline.clone_sessions, config.clone_forms

    def snapshot() -> list[_Row]:
        present = sessions.sessions()
        if wanted and wanted not in present:
            raise _absent(wanted)
        numbers = [wanted] if wanted else sorted(present)
        return [(number, present[number], forms.get(number, frozenset())) for number in numbers]

    return snapshot, _encode


def _encode(row: _Row) -> Any:
    number, session, as_bytes = row
    entity = p4runtime_pb2.Entity()
    out = entity.packet_replication_engine_entry.clone_session_entry
    out.session_id = number
    out.class_of_service = session.class_of_service
    out.packet_length_bytes = session.packet_length_bytes
    encode_replicas(session.replicas, as_bytes, out.replicas)
    return entity


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


def _absent(number: int) -> P4RuntimeError:
    return P4RuntimeError(code_pb2.NOT_FOUND, f"clone session {number} does not exist")
