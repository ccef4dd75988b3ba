# SPDX-License-Identifier: Apache-2.0
"""A bare P4Runtime client for the tests: raw stubs, a stream, and messages by name.

It checks nothing, so that tests can send what is wrong.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from p4reduce_common.grpc_channels import open_channel
from switch_peer import DEADLINE_S

COMPILE_DEADLINE_S = 200.0

PROGRAMS = Path(__file__).parent / "programs"

INSERT, MODIFY, DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE


def load_p4info(program: str) -> Any:
    path = PROGRAMS / f"{program}.p4info.txtpb"
    return text_format.Parse(path.read_text(), p4info_pb2.P4Info())


def device_config(program: str) -> bytes:
    return (PROGRAMS / f"{program}.json").read_bytes()


def config(program: str, cookie: int | None = None) -> Any:
    message = p4rt.ForwardingPipelineConfig(
        p4info=load_p4info(program), p4_device_config=device_config(program)
    )
    if cookie is not None:
        message.cookie.cookie = cookie
    return message


_KINDS = (
    "tables",
    "actions",
    "counters",
    "registers",
    "action_profiles",
    "meters",
    "direct_meters",
    "digests",
)


class Builder:
    """Messages of one program, its objects given by name."""

    def __init__(self, program: str) -> None:
        self.p4info = load_p4info(program)
        self._ids = {
            item.preamble.name: item.preamble.id
            for kind in _KINDS
            for item in getattr(self.p4info, kind)
        }
        self._tables = {table.preamble.name: table for table in self.p4info.tables}
        self._actions = {action.preamble.name: action for action in self.p4info.actions}

    def id(self, name: str) -> int:
        return int(self._ids[name])

    def entry(
        self,
        table: str,
        match: Iterable[Any] = (),
        action: tuple[Any, ...] | None = None,
        priority: int = 0,
        **fields: Any,
    ) -> Any:
        """A TableEntry. `action` is (name, argument, ...), arguments as ints or bytes."""
        message = p4rt.TableEntry(table_id=self.id(table), priority=priority, **fields)
        message.match.extend(match)
        if action is not None:
            message.action.action.CopyFrom(self.action(*action))
        return message

    def action(self, name: str, *args: int | bytes) -> Any:
        message = p4rt.Action(action_id=self.id(name))
        for param, value in zip(self._actions[name].params, args, strict=True):
            message.params.add(param_id=param.id, value=as_bytes(value))
        return message

    def field_id(self, table: str, field: str) -> int:
        return next(int(f.id) for f in self._tables[table].match_fields if f.name == field)


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def exact(field_id: int, value: int | bytes) -> Any:
    return p4rt.FieldMatch(field_id=field_id, exact={"value": as_bytes(value)})


def lpm(field_id: int, value: int | bytes, prefix_len: int) -> Any:
    return p4rt.FieldMatch(
        field_id=field_id, lpm={"value": as_bytes(value), "prefix_len": prefix_len}
    )


def ternary(field_id: int, value: int | bytes, mask: int | bytes) -> Any:
    return p4rt.FieldMatch(
        field_id=field_id, ternary={"value": as_bytes(value), "mask": as_bytes(mask)}
    )


def range_(field_id: int, low: int | bytes, high: int | bytes) -> Any:
    return p4rt.FieldMatch(field_id=field_id, range={"low": as_bytes(low), "high": as_bytes(high)})


def optional(field_id: int, value: int | bytes) -> Any:
    return p4rt.FieldMatch(field_id=field_id, optional={"value": as_bytes(value)})


def entity(message: Any) -> Any:
    """An Entity of whatever kind `message` is."""
    if isinstance(message, p4rt.MulticastGroupEntry):
        return p4rt.Entity(packet_replication_engine_entry={"multicast_group_entry": message})
    if isinstance(message, p4rt.CloneSessionEntry):
        return p4rt.Entity(packet_replication_engine_entry={"clone_session_entry": message})
    for field in p4rt.Entity.DESCRIPTOR.fields:
        if field.message_type.name == type(message).__name__:
            return p4rt.Entity(**{field.name: message})
    raise TypeError(type(message))


class BatchError(Exception):
    """What a Write or Read said about each element of its batch."""

    def __init__(self, error: grpc.RpcError) -> None:
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        self.size = len(details)
        status = status_pb2.Status.FromString(details)
        assert status.code == code_pb2.UNKNOWN
        assert status.message == error.details()
        self.errors = []
        for detail in status.details:
            item = p4rt.Error()
            assert detail.Unpack(item)
            self.errors.append(item)
        super().__init__(status.message)

    @property
    def codes(self) -> list[str]:
        return [code_pb2.Code.Name(item.canonical_code) for item in self.errors]


class Client:
    """One controller: a channel, the stub, and at most one stream."""

    def __init__(
        self,
        address: str,
        *,
        device_id: int = 1,
        election_id: int = 1,
        options: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.device_id = device_id
        self.election_id = election_id
        self.channel = open_channel(address, options=options)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.received: queue.Queue[Any] = queue.Queue()
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self._call: Any = None
        self._reader: threading.Thread | None = None

    # -- Stream ----------------------------------------------------------------------------------

    def open_stream(self) -> None:
        self._call = self.stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, args=(self._call,), daemon=True)
        self._reader.start()

    def _read(self, call: Any) -> None:
        try:
            for message in call:
                self.received.put(message)
            self.received.put(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.received.put(error)

    def end_sending(self) -> None:
        """Close the stream's own half; what the switch says still comes."""
        self._outgoing.put(None)

    def send(self, **fields: Any) -> None:
        self._outgoing.put(p4rt.StreamMessageRequest(**fields))

    def next(self) -> Any:
        """The next message of the stream, or the RpcError or OK that it ended with."""
        return self.received.get(timeout=DEADLINE_S)

    def arbitrate(self, election_id: int | None = None, **fields: Any) -> None:
        """Send a MasterArbitrationUpdate, without waiting for the answer."""
        if self._call is None:
            self.open_stream()
        if election_id is not None:
            self.election_id = election_id
        update = p4rt.MasterArbitrationUpdate(
            device_id=self.device_id, election_id=uint128(self.election_id)
        )
        update.MergeFrom(p4rt.MasterArbitrationUpdate(**fields))
        self.send(arbitration=update)

    def become_primary(self, election_id: int | None = None) -> Any:
        self.arbitrate(election_id)
        update = self.next().arbitration
        assert update.status.code == code_pb2.OK, update
        return update

    # -- Unary calls -----------------------------------------------------------------------------

    def set_config(self, config: Any, action: str = "VERIFY_AND_COMMIT", **fields: Any) -> None:
        request = p4rt.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=uint128(self.election_id),
            action=action,
        )
        if config is not None:
            request.config.CopyFrom(config)
        request.MergeFrom(p4rt.SetForwardingPipelineConfigRequest(**fields))
        self.stub.SetForwardingPipelineConfig(request, timeout=COMPILE_DEADLINE_S)

    def get_config(self, response_type: str = "ALL") -> Any:
        return self.stub.GetForwardingPipelineConfig(
            p4rt.GetForwardingPipelineConfigRequest(
                device_id=self.device_id, response_type=response_type
            ),
            timeout=DEADLINE_S,
        )

    def write(self, *updates: tuple[int, Any], **fields: Any) -> None:
        """Write (type, message) pairs. Raises BatchError, or RpcError for the whole call."""
        request = p4rt.WriteRequest(device_id=self.device_id, election_id=uint128(self.election_id))
        for kind, message in updates:
            request.updates.add(type=kind, entity=entity(message))
        request.MergeFrom(p4rt.WriteRequest(**fields))
        with _batch_errors():
            self.stub.Write(request, timeout=DEADLINE_S)

    def refused(self, kind: int, message: Any) -> tuple[str, str]:
        """Code and text with which the only update of a Write is refused."""
        try:
            self.write((kind, message))
        except BatchError as error:
            (only,) = error.errors
            return error.codes[0], only.message
        raise AssertionError(f"not refused: {message}")

    def responses(self, *messages: Any) -> Iterator[Any]:
        request = p4rt.ReadRequest(device_id=self.device_id)
        request.entities.extend(map(entity, messages))
        with _batch_errors():
            yield from self.stub.Read(request, timeout=DEADLINE_S)

    def read(self, *messages: Any) -> list[Any]:
        """What is read, each taken out of its Entity."""
        entities = itertools.chain.from_iterable(r.entities for r in self.responses(*messages))
        return [_content(item) for item in entities]

    def read_refused(self, message: Any) -> tuple[str, str]:
        try:
            self.read(message)
        except BatchError as error:
            return error.codes[0], error.errors[0].message
        raise AssertionError(f"not refused: {message}")

    def close(self) -> None:
        self._outgoing.put(None)
        if self._call is not None:
            self._call.cancel()
        self.channel.close()
        if self._reader is not None:
            self._reader.join(DEADLINE_S)


class _batch_errors:  # noqa: N801
    """Turns a status with details into a BatchError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNKNOWN:
            raise BatchError(error) from None


def _content(item: Any) -> Any:
    message = getattr(item, item.WhichOneof("entity"))
    if isinstance(message, p4rt.PacketReplicationEngineEntry):
        return getattr(message, message.WhichOneof("type"))
    return message


def uint128(value: int) -> Any:
    return p4rt.Uint128(high=value >> 64, low=value & ((1 << 64) - 1))
