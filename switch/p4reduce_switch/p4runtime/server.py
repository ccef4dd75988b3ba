# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server: the gRPC service over one data plane.

Implements P4Runtime 1.4.1. One lock serialises the requests of all clients. Operations on tables
run in the data plane's thread between two packets (`DataPlane.run`). So tables need no locks, and
every update is atomic for packets.

Where the specification leaves a choice, this server does as BMv2's. Where BMv2's differs from it,
this one follows the specification. docs/bmv2-differences.md lists both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from p4reduce_common.threads import new_thread

from p4reduce_switch.dataplane import DataPlane
from p4reduce_switch.debug.debugger import Debugger
from p4reduce_switch.errors import (
    P4RuntimeError,
    abort,
    abort_batch,
    denied,
    internal,
    invalid,
    not_found,
    of_state,
    too_early,
    unavailable,
    unsupported,
)
from p4reduce_switch.p4runtime.arbitration import (
    Arbiter,
    ControllerStream,
    election_id_of,
    refuse_role_id,
)
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.device_config import program_of
from p4reduce_switch.p4runtime.entities.common import in_parts
from p4reduce_switch.p4runtime.entities.digests import digest_message, plan_acknowledgement
from p4reduce_switch.p4runtime.entities.idle import idle_messages
from p4reduce_switch.p4runtime.entities.registry import plan_read, plan_update
from p4reduce_switch.p4runtime.listening import MAX_STREAMS, listen
from p4reduce_switch.p4runtime.loading import load_config, load_program
from p4reduce_switch.p4runtime.packets import PacketCodec
from p4reduce_switch.p4runtime.reconcile import copy_volatile, queries, replay
from p4reduce_switch.p4runtime.several_cores import check_core
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.pipeline_choice import Engine, load_pipeline
from p4reduce_switch.ports.core import Core
from p4reduce_switch.state.errors import StateError
from p4reduce_switch.state.queue_settings import QueueSettings

log = logging.getLogger(__name__)

API_VERSION = "1.4.1"

# P4Runtime has no list of ports, so the answer to Capabilities carries them, too.
PORTS_METADATA = "p4reduce-ports"
NO_CARRIER_METADATA = "p4reduce-ports-without-carrier"

_STEPS_PER_CHUNK = 64  # of a Write or Read, that the data plane does between two packets
_LOCK_TIMEOUT_S = 30.0

_SetRequest = p4runtime_pb2.SetForwardingPipelineConfigRequest
_GetRequest = p4runtime_pb2.GetForwardingPipelineConfigRequest
_ACTIONS_WITH_CONFIG = frozenset(
    {
        _SetRequest.VERIFY,
        _SetRequest.VERIFY_AND_SAVE,
        _SetRequest.VERIFY_AND_COMMIT,
        _SetRequest.RECONCILE_AND_COMMIT,
    }
)


class P4RuntimeServer:
    """Serves P4Runtime for one device.

    Args:
        dataplane: runs the pipeline. Its packet-ins go to the primary controllers.
        device_id: the only accepted device id.
        engine: "native", "python", or "auto" for machine code if possible.
        drop_port: the port that `mark_to_drop` sends to.
        queues: how egress queues are set up.
        on_pipeline: called with each newly loaded pipeline and its JSON,
            outside the data plane's thread.
        debugger: called at each point of the program, which is then interpreted.
        core: the number among several data planes with the same ports.
    """

    def __init__(
        self,
        dataplane: DataPlane,
        *,
        device_id: int = 1,
        engine: Engine = "auto",
        drop_port: int = 511,
        queues: QueueSettings | None = None,
        on_pipeline: Callable[[Pipeline, bytes], None] | None = None,
        debugger: Debugger | None = None,
        core: Core | None = None,
    ) -> None:
        self.device_id = device_id
        self._core = core or Core()
        self._dataplane = dataplane
        self._load_pipeline = partial(
            load_pipeline,
            engine=engine,
            cpu_port=dataplane.cpu_port,
            drop_port=drop_port,
            queues=queues,
            debugger=debugger,
        )
        self._on_pipeline = on_pipeline
        self._lock = threading.Lock()
        self._arbiter = Arbiter(device_id, MAX_STREAMS)
        self._control: ForwardingConfig | None = None  # what reads and writes refer to
        self._active: ForwardingConfig | None = None  # what packets go through
        self._server: grpc.Server | None = None
        self._executor: futures.ThreadPoolExecutor | None = None
        dataplane.on_packet_in(self._packet_in)

    # -- Life --------------------------------------------------------------------------------------

    def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen, as `listening.listen` says; return the TCP port (0 for unix)."""
        self._server, self._executor, port = listen(_P4RuntimeServicer(self), address, credentials)
        return port

    def stop(self, grace: float = 0.2) -> None:
        """Stop listening, end all streams, and wait up to `grace` seconds for running calls."""
        self._arbiter.stop(unavailable("the switch is shutting down"))
        if self._server is None:
            return
        self._server.stop(grace).wait(grace + 0.5)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._server = None

    # -- Pipeline ----------------------------------------------------------------------------------

    def preload(self, message: Any, entries_file: bytes = b"") -> None:
        """Load a `ForwardingPipelineConfig` at the start, without a controller.

        `entries_file`: p4c's file of the program's entries, as text.

        Raises:
            P4RuntimeError: as for a SetForwardingPipelineConfig.
        """
        config = load_config(message, self._load_pipeline, entries_file)
        with self._locked():
            self._commit(config)

    def preload_program(self, program: bytes) -> None:
        """Run a program without its P4Info, unless a controller has set a program already.

        A controller can neither read nor write until it has set the program with its P4Info.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT, the program cannot be loaded.
        """
        pipeline = load_program(program, self._load_pipeline)
        with self._locked():
            if self._active is not None:
                return
            self._dataplane.run(partial(self._dataplane.install, pipeline))
        if self._on_pipeline is not None:
            self._on_pipeline(pipeline, program)

    def set_config(self, request: Any) -> None:
        self._check_device(request.device_id)
        refuse_role_id(request)
        election_id = election_id_of(request)
        self._arbiter.check_primary(request.role, election_id)
        config = self._verify(request)
        # Loading takes long enough for the primary to have changed.
        with self._locked(), self._arbiter.writing(request.role, election_id):
            if request.action == _SetRequest.VERIFY_AND_SAVE:
                self._control = config
            elif request.action == _SetRequest.VERIFY_AND_COMMIT:
                assert config is not None
                self._commit(config)
            elif request.action == _SetRequest.RECONCILE_AND_COMMIT:
                assert config is not None
                self._reconcile(config)
            elif request.action == _SetRequest.COMMIT:
                if self._control is None or self._control is self._active:
                    raise not_found(
                        "no config is saved and not yet committed; use VERIFY_AND_SAVE first"
                    )
                self._commit(self._control)

    def _verify(self, request: Any) -> ForwardingConfig | None:
        """The loaded config of a request, if its action takes one."""
        action = request.action
        if action in _ACTIONS_WITH_CONFIG:
            if not request.HasField("config"):
                raise invalid(f"{_SetRequest.Action.Name(action)} needs a config, which is missing")
            check_core(request.config.p4info, self._core)
            return load_config(request.config, self._load_pipeline)
        if action != _SetRequest.COMMIT:
            raise invalid(f"action {action} is not an action of SetForwardingPipelineConfig")
        if request.HasField("config"):
            raise invalid("COMMIT commits the config that was saved; it takes none itself")
        return None

    def _reconcile(self, config: ForwardingConfig) -> None:
        """Commit a config with the forwarding state of the active one, or raise and change
        nothing."""
        old = self._active
        if old is None:
            self._commit(config)
            return
        reads = queries(old)
        found = self._dataplane.run(lambda: [query.snapshot() for query in reads])
        entities = (q.encode(row) for q, rows in zip(reads, found, strict=True) for row in rows)
        replay(old, config, entities)
        self._commit(config, partial(copy_volatile, old, config))

    def _commit(self, config: ForwardingConfig, before: Callable[[], None] = lambda: None) -> None:
        def switch_over() -> None:
            before()
            # Together, so that a packet-in is read by the P4Info of the program that sent it.
            self._listen(config)
            self._dataplane.install(config.pipeline)
            self._active = config

        self._dataplane.run(switch_over)
        self._control = config
        if self._on_pipeline is not None:
            self._on_pipeline(config.pipeline, program_of(config.message.p4_device_config))

    def get_config(self, request: Any) -> Any:
        self._check_device(request.device_id)
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        kind = request.response_type
        if kind not in _GetRequest.ResponseType.values():
            raise invalid(f"response_type {kind} is not one of 0 to 3")
        config = self._control
        if config is None:
            return response
        response.config.SetInParent()
        if config.message.HasField("cookie"):
            response.config.cookie.CopyFrom(config.message.cookie)
        if kind in (_GetRequest.ALL, _GetRequest.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.message.p4info)
        if kind in (_GetRequest.ALL, _GetRequest.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.message.p4_device_config
        return response

    def capabilities(self, request: Any) -> Any:
        device_id = getattr(request, "device_id", 0)  # older stubs do not have it
        if device_id:
            self._check_device(device_id)
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def ports_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that lists the ports, and those without a carrier."""
        ports = self._dataplane.ports
        dark = [number for number, port in ports.items() if not port.has_carrier]
        return (
            (PORTS_METADATA, ",".join(map(str, ports))),
            (NO_CARRIER_METADATA, ",".join(map(str, dark))),
        )

    # -- Entities ----------------------------------------------------------------------------------

    def write(self, request: Any) -> list[P4RuntimeError | None]:
        """Apply a batch; return the result of each update, in order."""
        self._check_device(request.device_id)
        refuse_role_id(request)
        with self._locked(), self._arbiter.writing(request.role, election_id_of(request)):
            config = self._configured()
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise unsupported(
                    f"atomicity {request.atomicity} is not supported, only CONTINUE_ON_ERROR (0)"
                )
            plans = [_attempt(partial(plan_update, config, u)) for u in request.updates]
            results: list[P4RuntimeError | None] = []
            try:
                for done in self._in_chunks(plans):
                    results += done
            except P4RuntimeError as error:  # the rest is not carried out
                rest = plans[len(results) :]
                results += [p if isinstance(p, P4RuntimeError) else error for p in rest]
            return results

    def read(self, request: Any) -> Iterator[Any]:
        """Yield the responses of a Read.

        Raises:
            BatchError: after the last response, if any of the requested entities was refused.
        """
        self._check_device(request.device_id)
        with self._locked():
            config = self._configured()
            plans = [_attempt(partial(plan_read, config, e)) for e in request.entities]
            steps = [p if isinstance(p, P4RuntimeError) else p.snapshot for p in plans]
            found = [rows for done in self._in_chunks(steps) for rows in done]
        results = [rows if isinstance(rows, P4RuntimeError) else None for rows in found]
        entities = (
            query.encode(row)
            for query, rows in zip(plans, found, strict=True)
            if not isinstance(rows, P4RuntimeError)
            for row in rows
        )
        for part in in_parts(entities):
            yield p4runtime_pb2.ReadResponse(entities=part)
        if any(results):
            raise BatchError(results)

    def _in_chunks(
        self, steps: Sequence[Callable[[], Any] | P4RuntimeError]
    ) -> Iterator[list[Any]]:
        """What each step returns, or its error; the data plane does a few between two packets.

        Raises:
            P4RuntimeError: UNAVAILABLE, the data plane does not answer. What has not been yielded
                was not carried out.
        """
        for start in range(0, len(steps), _STEPS_PER_CHUNK):
            chunk = steps[start : start + _STEPS_PER_CHUNK]
            yield self._dataplane.run(partial(_attempt_all, chunk))

    # -- Stream ------------------------------------------------------------------------------------

    def open_stream(self, peer: str) -> ControllerStream:
        return self._arbiter.join(peer)

    def close_stream(self, controller: ControllerStream) -> None:
        self._arbiter.leave(controller)

    def handle(self, controller: ControllerStream, request: Any) -> None:
        """Handle one `StreamMessageRequest`.

        Raises:
            P4RuntimeError: the stream must end with this status.
        """
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._arbiter.update(controller, request.arbitration)
            return
        try:
            if kind == "packet":
                self._packet_out(controller, request.packet)
            elif kind == "digest_ack":
                self._acknowledge(controller, request.digest_ack)
            else:
                raise unsupported(f"stream messages of kind {kind} are not supported")
        except P4RuntimeError as error:
            controller.send(_stream_error(error, kind, request))

    def _packet_out(self, controller: ControllerStream, packet: Any) -> None:
        config = self._active_for(controller, "send packet-outs")
        self._dataplane.inject(config.packet_out.packet_out(packet.payload, packet.metadata))

    def _acknowledge(self, controller: ControllerStream, message: Any) -> None:
        config = self._active_for(controller, "acknowledge digests")
        self._dataplane.run(plan_acknowledgement(config, message))

    def _active_for(self, controller: ControllerStream, what: str) -> ForwardingConfig:
        """What packets go through, for a primary that wants to do something with it."""
        if not self._arbiter.is_primary(controller):
            raise denied(f"only the primary may {what}")
        if self._active is None:
            raise _no_pipeline()
        return self._active

    def _listen(self, config: ForwardingConfig) -> None:
        """Send what a pipeline learns, and its idle entries, to the primaries."""
        digests = {spec.loaded: spec for spec in config.p4info.digests.values()}
        tables = {spec.name: spec for spec in config.p4info.tables.values()}

        def send(*responses: Any) -> None:
            for controller in self._arbiter.primaries:
                for response in responses:
                    controller.send_packet_in(response)

        for digest in config.pipeline.digests.values():
            digest.sink = lambda name, number, samples: send(
                digest_message(digests[name], number, samples)
            )
        for monitor in config.pipeline.idle.values():
            monitor.sink = lambda name, entries: send(*idle_messages(tables[name], entries))

    def _packet_in(self, frame: bytes) -> bool:
        """Called in the data plane's thread: only queues; False if no controller took the frame."""
        config = self._active
        if config is None:
            return False
        item = (config.packet_in, frame)
        taken = [controller.send_packet_in(item) for controller in self._arbiter.primaries]
        return any(taken)

    # -- Common ------------------------------------------------------------------------------------

    def _check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise not_found(
                f"device_id {device_id} is not served here; the device of this switch is "
                f"{self.device_id}"
            )

    def _configured(self) -> ForwardingConfig:
        if self._control is None:
            raise _no_pipeline()
        return self._control

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise unavailable(f"another request has held the switch for {_LOCK_TIMEOUT_S:.0f} s")
        try:
            yield
        finally:
            self._lock.release()


class BatchError(Exception):
    """Elements of a batch that failed; `results` holds one item per element, None for success."""

    def __init__(self, results: list[P4RuntimeError | None]) -> None:
        super().__init__(f"{sum(r is not None for r in results)} of {len(results)} failed")
        self.results = results


class _P4RuntimeServicer(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """The gRPC side: statuses instead of exceptions. Method names are gRPC's."""

    def __init__(self, server: P4RuntimeServer) -> None:
        self._server = server

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with _statuses(context):
            results = self._server.write(request)
        if any(results):
            abort_batch(context, results, "updates")
        return p4runtime_pb2.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        with _statuses(context):
            yield from self._server.read(request)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        with _statuses(context):
            self._server.set_config(request)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        with _statuses(context):
            return self._server.get_config(request)

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with _statuses(context):
            response = self._server.capabilities(request)
        context.set_trailing_metadata(self._server.ports_metadata())
        return response

    def StreamChannel(  # noqa: N802
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        with _statuses(context):
            controller = self._server.open_stream(context.peer())
        try:
            # Both ends of the stream end it: what the client sends (or its hanging up), and
            # what the server closes the controller with.
            if not context.add_callback(controller.close):
                return
            args = self._server, controller, requests
            new_thread(_read_stream, "p4runtime-stream", args=args).start()
            for message in controller.outgoing():
                if isinstance(message, tuple):
                    codec, frame = message
                    response = _packet_in_message(codec, frame)
                    if response is not None:
                        yield response
                else:
                    yield message
        except P4RuntimeError as error:
            log.info("stream of %s ended: %s", controller.peer, error)
            abort(context, error)
        finally:
            self._server.close_stream(controller)


@contextmanager
def _statuses(context: grpc.ServicerContext) -> Iterator[None]:
    """Ends the call with the status of what is raised within."""
    try:
        yield
    except P4RuntimeError as error:
        abort(context, error)
    except BatchError as error:
        abort_batch(context, error.results, "entities")


def _packet_in_message(codec: PacketCodec, frame: bytes) -> Any | None:
    response = codec.packet_in(frame)
    if response is None:
        log.warning(
            "a frame of %d bytes to the CPU port has no room for the packet-in header of %d bytes",
            len(frame),
            codec.size,
        )
    return response


def _read_stream(
    server: P4RuntimeServer, controller: ControllerStream, requests: Iterator[Any]
) -> None:
    """Thread of one stream: hands on what the client sends until it stops or hangs up."""
    try:
        for request in requests:
            server.handle(controller, request)
    except P4RuntimeError as error:
        controller.close(error)
    except grpc.RpcError:
        controller.close()  # cancelled, or the connection is gone
    except Exception:
        log.exception("stream of %s failed", controller.peer)
        controller.close(internal("the switch failed; see its log"))
    else:
        controller.close()


def _attempt_all(steps: Sequence[Callable[[], Any] | P4RuntimeError]) -> list[Any]:
    return [step if isinstance(step, P4RuntimeError) else _attempt(step) for step in steps]


def _attempt(step: Callable[[], Any]) -> Any:
    """What `step` returns, or the error that it raised: one element must not cost the others."""
    try:
        return step()
    except P4RuntimeError as error:
        return error
    except StateError as error:
        return of_state(error)
    except Exception:
        log.exception("an element of a request failed")
        return internal("the switch failed; see its log")


def _no_pipeline() -> P4RuntimeError:
    return too_early("no forwarding pipeline is set; use SetForwardingPipelineConfig first")


def _stream_error(error: P4RuntimeError, kind: str | None, request: Any) -> Any:
    """The `StreamError` that names the wrong message (section "Stream Error Reporting")."""
    response = p4runtime_pb2.StreamMessageResponse()
    response.error.canonical_code = error.code
    response.error.message = error.message
    if kind == "packet":
        response.error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    elif kind == "other":
        response.error.other.other.CopyFrom(request.other)
    return response
