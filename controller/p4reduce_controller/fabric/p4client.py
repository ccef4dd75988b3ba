# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client for one switch, with deadlines and typed errors.

Section numbers are those of the P4Runtime specification 1.4.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4reduce.control import tls
from p4reduce_common.grpc_channels import open_channel
from p4reduce_common.polling import attempts
from p4reduce_common.threads import new_thread

from p4reduce_controller.fabric import switch_ports
from p4reduce_controller.fabric.compiled_program import PipelineProgram
from p4reduce_controller.fabric.schema import (
    MeterRate,
    MulticastGroup,
    Op,
    Schema,
    TableRow,
    Update,
    decode,
)
from p4reduce_controller.values.counts import CounterValue

log = logging.getLogger(__name__)

_T = TypeVar("_T")

TLS_CURE = "give --switch-tls-cert, --switch-tls-key, --switch-tls-ca"
_HANG_UP = 1.0  # seconds for a stream to end
RETRY = 0.05  # seconds between two calls of a server that went away, or is not ready for us
CALL_TIMEOUT = 5.0  # seconds; below that of the CLI, so that its users see why
READ_TIMEOUT = 30.0  # a full table has thousands of entries; a dead switch is noticed elsewhere
PIPELINE_TIMEOUT = 120.0  # a compiler may have to run, for the first time on a slow machine
PACKETS_QUEUED = 4096  # of those to the controller; more are dropped, as a network would
UPDATES_A_WRITE = 128  # more statuses may not fit into the 8 KiB that gRPC takes of an error


class SwitchError(Exception):
    """A fault of the switch or of its session. The message is for people."""


class NoSwitchAnswerError(SwitchError):
    """Nothing answers at the switch's address, or not any more."""


class NotPrimaryError(SwitchError):
    """Another controller is the switch's primary."""


class NoPrimaryError(NotPrimaryError):
    """The switch has no primary controller, but remembers a higher election id.

    Args:
        needed: the lowest election id that the switch accepts now.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class PipelineRefusedError(SwitchError):
    """The switch refuses the program."""


class RegistersHiddenError(SwitchError):
    """The switch does not show its registers, as with BMv2's P4Runtime server."""


class RequestRefusedError(SwitchError):
    """The switch refused a whole request."""


@dataclass(frozen=True)
class UpdateFailure:
    """An update that the switch refused."""

    update: Update
    code: str  # google.rpc.Code's name
    message: str

    def __str__(self) -> str:
        return f"{self.update}: {self.code}" + (f" ({self.message})" if self.message else "")


class WriteRefusedError(SwitchError):
    """Some updates of a Write were refused; all the others were done."""

    def __init__(self, failures: Sequence[UpdateFailure], done: Sequence[Update]) -> None:
        self.failures = list(failures)
        self.done = list(done)
        more = f", and {len(failures) - 3} more" if len(failures) > 3 else ""
        super().__init__("; ".join(str(failure) for failure in failures[:3]) + more)

    @property
    def full(self) -> bool:
        """Whether a table of the switch was full."""
        return any(failure.code == "RESOURCE_EXHAUSTED" for failure in self.failures)


@dataclass(frozen=True)
class PacketIn:
    """A frame that the switch handed to the controller."""

    port: int
    frame: bytes


@dataclass(frozen=True)
class StreamEnded:
    """The session has ended, with the reason."""

    reason: str


class _ShellSession:
    """A stream of messages with a switch, which begins with arbitration (section 5).

    Attributes:
        arbitration: the switch's answer; None if it gave none in time.
        incoming: what the switch says afterwards. None: the stream has ended.
        reader: the thread that reads the stream.
    """

    def __init__(
        self,
        address: str,
        device_id: int,
        election_id: tuple[int, int],
        timeout: float,
        files: tls.TlsFiles | None,
    ) -> None:
        self.device_id, self.election_id = device_id, election_id
        self.arbitration: Any = None
        self.incoming: queue.Queue[Any] = queue.Queue(PACKETS_QUEUED)
        self._outgoing: queue.Queue[Any] = queue.Queue()
        credentials = None if files is None else files.channel_credentials()
        self.channel = open_channel(address, credentials)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.stream = self.stub.StreamChannel(iter(self._outgoing.get, None))
        self.reader = new_thread(self._read, "p4runtime-stream", self._tell_end)
        self.reader.start()
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = device_id
        request.arbitration.election_id.high, request.arbitration.election_id.low = election_id
        self.send(request)
        try:
            # A server speaks first when it answers arbitration.
            reply = self.incoming.get(timeout=timeout)
        except queue.Empty:
            return
        except BaseException:  # Ctrl-C: nobody else knows of the thread that reads the stream
            self.hang_up()
            raise
        if reply is not None:
            self.arbitration = reply.arbitration

    def send(self, request: Any) -> None:
        """Send a message on the stream."""
        self._outgoing.put(request)

    def hang_up(self) -> None:
        """End the session, without waiting for a server that is silent.

        A server that answers ends the stream once it has released the election id. The next session
        may then have the same one.
        """
        self._outgoing.put(None)
        self.reader.join(timeout=_HANG_UP)
        self.stream.cancel()
        self.reader.join(timeout=_HANG_UP)
        self.channel.close()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # `stream` keeps why it ended
            for message in self.stream:
                self._put(message)
        self._put(None)

    def _tell_end(self, _: BaseException) -> None:
        self._put(None)

    def _put(self, message: Any) -> None:
        with contextlib.suppress(queue.Full):  # the thread never blocks: the message is dropped
            self.incoming.put_nowait(message)


def wait_for_server(
    address: str, timeout: float, files: tls.TlsFiles | None = None, *, patient: bool = True
) -> dict[str, str]:
    """Wait until a gRPC server answers at `address`, and return the metadata of its answer.

    That is the trailing metadata of a call of Capabilities (P4Runtime specification 1.4, section
    21). A server that does not have this call answers as well. Unless `patient`, a refused
    connection is not tried again.

    Raises:
        NoSwitchAnswerError: nothing answers in time. TlsError: the files cannot be used.
    """
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
    credentials = None if files is None else files.channel_credentials()
    channel = open_channel(address, credentials, options)
    request = p4runtime_pb2.CapabilitiesRequest()
    # gRPC's own wait for a channel looks five times per second; a call begins at once.
    with channel:
        ask = p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities
        for left in attempts(timeout, RETRY):
            try:
                _, call = ask.with_call(request, timeout=left, wait_for_ready=patient)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    break
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    if patient:  # it went away in the middle of the call
                        continue
                    raise NoSwitchAnswerError(f"nobody listens at {address}") from None
                call = error  # not all servers have this call
            return {str(name): str(value) for name, value in call.trailing_metadata() or ()}
    why = tls.diagnose(address, files, TLS_CURE)
    raise NoSwitchAnswerError(
        f"no P4Runtime server answers at {address} (waited {timeout:g} s)"
        + (f": {why}" if why else "")
    )


class SwitchClient:
    """The primary controller's session with one switch. Thread-safe; all calls block."""

    def __init__(self, session: _ShellSession, address: str) -> None:
        self.address = address
        self.device_id = int(session.device_id)
        self.election_id = _number(session.election_id)
        self.incoming = session.incoming  # what the switch has said, and `receive` not yet taken
        self._session = session
        self._schema: Schema | None = None
        self._ended = threading.Event()

    @classmethod
    def connect(
        cls,
        address: str,
        device_id: int,
        election_id: int,
        *,
        timeout: float = 10.0,
        files: tls.TlsFiles | None = None,
        patient: bool = True,
        take_over: bool = True,
    ) -> SwitchClient:
        """Become the primary controller of the switch at `address`, by TLS if there are `files`.

        `timeout` is in seconds. Raises NoSwitchAnswerError if nothing answers, NotPrimaryError
        if another controller is primary, and TlsError if the files cannot be used. Unless
        `patient`, a refused connection is not tried again.

        A switch remembers the highest election id that it has seen, even after that controller has
        gone. With `take_over`, and if there is no primary, this asks again with that id. The switch
        accepts the first controller that does so, because two live ones cannot have the same id.
        """
        wait_for_server(address, timeout, files, patient=patient)
        try:
            return cls._arbitrate(address, device_id, election_id, timeout, files)
        except NoPrimaryError as error:
            if not take_over:
                raise
            log.warning(
                "%s has no primary controller: taking it over with election id %d",
                address,
                error.needed,
            )
            return cls._arbitrate(address, device_id, error.needed, timeout, files)

    @classmethod
    def _arbitrate(
        cls,
        address: str,
        device_id: int,
        election_id: int,
        timeout: float,
        files: tls.TlsFiles | None,
    ) -> SwitchClient:
        halves = (election_id >> 64, election_id & 0xFFFFFFFFFFFFFFFF)
        session = _ShellSession(address, device_id, halves, timeout, files)
        try:
            _check_primary(session, address, timeout)
        except BaseException:
            session.hang_up()
            raise
        return cls(session, address)

    def close(self) -> None:
        """End the session. Calls in flight fail."""
        self._ended.set()
        self._session.hang_up()

    @property
    def schema(self) -> Schema:
        """The names in the switch's program."""
        if self._schema is None:
            raise SwitchError("no pipeline was set yet")
        return self._schema

    def ports(self) -> frozenset[int] | None:
        """Return the numbers of the switch's ports; None if it does not list them."""
        request = p4runtime_pb2.CapabilitiesRequest()
        try:
            _, call = self._session.stub.Capabilities.with_call(request, timeout=CALL_TIMEOUT)
        except grpc.RpcError:
            return None  # not all servers have it
        ports = switch_ports.known(call.trailing_metadata() or (), self.address)
        return None if ports is None else ports.there

    # -- Pipeline ----------------------------------------------------------------------

    def set_pipeline(self, program: PipelineProgram) -> int:
        """Load `program` into the switch, which deletes all its entries (section 7.2).

        Returns the cookie that identifies this call. Raises PipelineRefusedError,
        NoSwitchAnswerError.
        """
        cookie = program.cookie()
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        self._sign(request)
        request.config.p4info.CopyFrom(program.p4info)
        request.config.p4_device_config = program.device_config
        request.config.cookie.cookie = cookie
        try:
            self._call(self._session.stub.SetForwardingPipelineConfig, request, PIPELINE_TIMEOUT)
        except grpc.RpcError as error:
            raise PipelineRefusedError(
                f"the switch at {self.address} refuses the program: "
                f"{error.code().name} {error.details()}"
            ) from None
        self._schema = Schema(program.p4info)
        return cookie

    def has_pipeline(self, program: PipelineProgram, cookie: int) -> bool:
        """Whether the switch still has `program` as `set_pipeline` with that cookie loaded it.

        If so, its tables can be read and written. Raises SwitchError.
        """
        kind = p4runtime_pb2.GetForwardingPipelineConfigRequest
        config = self._pipeline(kind.P4INFO_AND_COOKIE)
        if config is None or config.cookie.cookie != cookie:
            return False
        own = program.p4info
        if config.p4info != own:
            return False
        self._schema = Schema(own)
        return True

    def pipeline_cookie(self) -> int | None:
        """Return the cookie of the pipeline on the switch; None if there is no pipeline.

        Raises SwitchError.
        """
        kind = p4runtime_pb2.GetForwardingPipelineConfigRequest
        config = self._pipeline(kind.COOKIE_ONLY)
        return None if config is None else int(config.cookie.cookie)

    def _pipeline(self, kind: int) -> Any:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self.device_id, response_type=kind
        )
        try:
            reply = self._call(self._session.stub.GetForwardingPipelineConfig, request)
        except grpc.RpcError as error:
            # Section 7.3 leaves open whether that is an error or an empty answer.
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise RequestRefusedError(
                f"the switch does not report its pipeline: {error.code().name} {error.details()}"
            ) from None
        return reply.config if reply.HasField("config") else None

    # -- Write -------------------------------------------------------------------------

    def write(self, updates: Sequence[Update]) -> None:
        """Apply `updates`, in no particular order (section 12.1), in as few Writes as possible.

        Raises WriteRefusedError that names each refused one; the others are applied. Raises
        NoSwitchAnswerError if the switch does not answer or could not do all; some may be
        applied.
        """
        done: list[Update] = []
        failures: list[UpdateFailure] = []
        for start in range(0, len(updates), UPDATES_A_WRITE):
            batch = updates[start : start + UPDATES_A_WRITE]
            request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
            self._sign(request)
            request.updates.extend(self.schema.update(update) for update in batch)
            try:
                self._call(self._session.stub.Write, request)
                refused = []
            except grpc.RpcError as error:
                refused = write_failures(error, batch)
            if any(failure.code == "UNAVAILABLE" for failure in refused):
                raise NoSwitchAnswerError(f"the switch at {self.address}: {refused[-1]}")
            failures += refused
            failed = {id(failure.update) for failure in refused}
            done += [update for update in batch if id(update) not in failed]
        if failures:
            raise WriteRefusedError(failures, done)

    def insert(
        self, table: str, match: dict[str, int], action: str, params: dict[str, int]
    ) -> None:
        """Insert one entry. Raises WriteRefusedError."""
        self.write([Update(Op.INSERT, TableRow(table, match, action, params))])

    def set_meter(self, meter: str, rate: int, burst: int) -> None:
        """Give all cells of an indirect meter the same rate. Raises WriteRefusedError."""
        cells = range(self.schema.meter(meter).size)
        self.write([Update(Op.MODIFY, MeterRate(meter, index, rate, burst)) for index in cells])

    # -- Read --------------------------------------------------------------------------

    def read_table(self, table: str) -> list[TableRow]:
        """Return a table's entries, with counts if it has a direct counter."""
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = self.schema.table(table).preamble.id
        if self.schema.direct_counter(table):
            entity.table_entry.counter_data.SetInParent()  # ask for it (section 9.1.4)
        return [self.schema.row(read.table_entry) for read in self._read(entity)]

    def read_counter(self, counter: str) -> list[CounterValue]:
        """Return the cells of an indirect counter, in order."""
        info = self.schema.counter(counter)
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = info.preamble.id
        cells = [CounterValue(0, 0)] * info.size
        for read in self._read(entity, timeout=None):
            data = read.counter_entry.data
            cells[read.counter_entry.index.index] = CounterValue(data.packet_count, data.byte_count)
        return cells

    def read_cells(self, registers: Sequence[str], indices: Sequence[int]) -> list[list[int]]:
        """Return the cells `indices` of each register, one register after the other.

        The cells are read one by one, not at one moment. Raises RegistersHiddenError if the switch
        shows no registers.
        """
        ids = [self.schema.register(name).preamble.id for name in registers]
        entities = []
        for register in ids:
            for index in indices:
                entity = p4runtime_pb2.Entity()
                entity.register_entry.register_id = register
                entity.register_entry.index.index = index
                entities.append(entity)
        values = {
            (entry.register_id, entry.index.index): decode(entry.data.bitstring)
            for entry in (read.register_entry for read in self._read(*entities))
        }
        return [[values[register, index] for index in indices] for register in ids]

    def read_groups(self) -> list[MulticastGroup]:
        """Return all multicast groups."""
        entity = p4runtime_pb2.Entity()
        entity.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        groups = []
        for read in self._read(entity):
            entry = read.packet_replication_engine_entry.multicast_group_entry
            replicas = tuple((copy.egress_port, copy.instance) for copy in entry.replicas)
            groups.append(MulticastGroup(entry.multicast_group_id, replicas))
        return groups

    def _read(self, *entities: Any, timeout: float | None = READ_TIMEOUT) -> Iterator[Any]:
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)

        def read(request: Any, timeout: float) -> list[Any]:
            replies = self._session.stub.Read(request, timeout=timeout)
            return [entity for reply in replies for entity in reply.entities]

        try:
            yield from self._call(read, request, timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise RegistersHiddenError(
                    f"the switch at {self.address} does not show its registers by P4Runtime, as "
                    "BMv2 does not: slots are shown by the embedded switch"
                ) from None
            raise RequestRefusedError(
                f"the switch refuses to read: {error.code().name} {error.details()}"
            ) from None

    # -- Packets -----------------------------------------------------------------------

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send `frame` out of a port of the switch."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.CopyFrom(self.schema.packet_out(frame, {"egress_port": port}))
        self._session.send(request)

    def receive(self, timeout: float) -> PacketIn | StreamEnded | None:
        """Return the next frame for the controller, or None after `timeout` seconds.

        Return StreamEnded, once, when the session has ended or another controller took over.
        """
        try:
            message = self.incoming.get(timeout=timeout)
        except queue.Empty:
            # The word that the stream has ended is dropped too where there is no room.
            if self._session.reader.is_alive():
                return None
            return StreamEnded(self._why_ended())
        if message is None:
            return StreamEnded(self._why_ended())
        if message.HasField("packet"):
            port = self.schema.packet_in_metadata(message.packet).get("ingress_port", 0)
            return PacketIn(port, message.packet.payload)
        if message.HasField("arbitration") and message.arbitration.status.code != code_pb2.OK:
            return StreamEnded(
                f"another controller took over with election id "
                f"{_election_id(message.arbitration)}; ours is {self.election_id}"
            )
        return None

    def _why_ended(self) -> str:
        if self._ended.is_set():
            return "the session was closed"
        return f"the P4Runtime session with {self.address} ended ({_status(self._session.stream)})"

    # -- Calls -------------------------------------------------------------------------

    def _sign(self, request: Any) -> None:
        request.election_id.high, request.election_id.low = self._session.election_id

    def _call(self, method: Callable[..., _T], request: Any, timeout: float | None = None) -> _T:
        """Call with a deadline. RpcError is left to the caller unless nobody answered."""
        try:
            return method(request, timeout=timeout or CALL_TIMEOUT)
        except ValueError as error:  # gRPC's for a closed channel
            raise NoSwitchAnswerError(f"the session with {self.address} is closed") from error
        except grpc.RpcError as error:
            if error.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
            ):
                raise NoSwitchAnswerError(
                    f"the switch at {self.address} does not answer: "
                    f"{error.code().name} {error.details()}"
                ) from None
            if error.code() == grpc.StatusCode.PERMISSION_DENIED:
                raise NotPrimaryError(
                    f"the switch at {self.address} says that we are not its primary controller: "
                    f"{error.details()}"
                ) from None
            raise


def _check_primary(session: _ShellSession, address: str, timeout: float) -> None:
    ours = _number(session.election_id)
    arbitration = session.arbitration
    if arbitration is None:
        if not session.reader.is_alive() or session.stream.done():
            code, details = session.stream.code(), session.stream.details()
            if code == grpc.StatusCode.INVALID_ARGUMENT and "lection" in details:
                raise NotPrimaryError(
                    f"a backup: another controller of {address} has the same election id {ours}"
                )
            if code == grpc.StatusCode.UNIMPLEMENTED:
                raise SwitchError(
                    f"the server at {address} is not a switch (P4Runtime); is it a controller's "
                    "address (--listen)? Give the one of p4reduce-switch --grpc-addr"
                )
            raise SwitchError(
                f"the switch at {address} refuses device id {session.device_id}: "
                f"{code.name} {details}"
            )
        raise NoSwitchAnswerError(
            f"{address} did not answer the arbitration request within {timeout:g} s"
        )
    if arbitration.device_id != session.device_id:
        raise SwitchError(
            f"the switch at {address} has device id {arbitration.device_id}, "
            f"not {session.device_id}"
        )
    if arbitration.status.code == code_pb2.OK:
        return
    primary = _election_id(arbitration)
    if arbitration.status.code == code_pb2.NOT_FOUND:
        raise NoPrimaryError(
            f"a backup: there is no primary now, but an earlier one had election id {primary}, "
            f"and the switch accepts none lower; ours is {ours}",
            max(primary, ours),
        )
    raise NotPrimaryError(f"a backup: the primary has election id {primary}, ours is {ours}")


def write_failures(error: grpc.RpcError, updates: Sequence[Update]) -> list[UpdateFailure]:
    """Decode what a failed Write says about each of its updates (section 12.3).

    If a server gives no details, all updates failed for the same reason.
    """
    metadata: Any = error.trailing_metadata()  # grpc-stubs has its type wrong
    for key, value in metadata or ():
        if key != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(value)
        if len(status.details) != len(updates):
            break
        failures = []
        for update, detail in zip(updates, status.details, strict=True):
            verdict = p4runtime_pb2.Error()
            detail.Unpack(verdict)
            if verdict.canonical_code != code_pb2.OK:
                name = code_pb2.Code.Name(verdict.canonical_code)
                failures.append(UpdateFailure(update, name, verdict.message))
        return failures
    return [UpdateFailure(update, error.code().name, error.details() or "") for update in updates]


def _number(halves: tuple[int, int]) -> int:
    return int(halves[0]) << 64 | int(halves[1])


def _election_id(arbitration: Any) -> int:
    return _number((arbitration.election_id.high, arbitration.election_id.low))


def _status(stream: Any) -> str:
    if not stream.done():
        return "no reason given"
    return " ".join(part for part in (stream.code().name, stream.details()) if part)
