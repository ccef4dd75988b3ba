# SPDX-License-Identifier: Apache-2.0
"""Serves P4Runtime of several cores at one address: each call goes to the core whose device it
names.

A core serves P4Runtime at a Unix socket of its own. Answers are passed on unchanged, with the
details of statuses and the metadata that lists ports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from p4.v1 import p4runtime_pb2_grpc
from p4reduce_common.grpc_channels import open_channel

from p4reduce_switch.p4runtime.listening import listen

# P4Runtime has no list of devices, so the answer to Capabilities carries them, too.
DEVICES_METADATA = "p4reduce-devices"

_GRACE_S = 0.2
_LONGEST_S = 1e6
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 << 20),  # a status per update; the client has a limit of its own
    # A core that was started again is found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True)
class _CoreServer:
    """A core's server, as a client sees it."""

    number: int
    device_id: int
    channel: grpc.Channel
    stub: Any


class Front:
    """Serves P4Runtime for all cores.

    Args:
        addresses: of the cores' servers, in order.
        first_device: the device id of the first core; the others follow.
    """

    def __init__(self, addresses: Sequence[str], first_device: int) -> None:
        self._cores = []
        for number, address in enumerate(addresses):
            channel = open_channel(address, options=_OPTIONS)
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            self._cores.append(_CoreServer(number, first_device + number, channel, stub))
        self._server: grpc.Server | None = None
        self._executor: futures.ThreadPoolExecutor | None = None

    def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen, as `listening.listen` says; return the TCP port (0 for unix)."""
        servicer, devices = _FrontServicer(self._cores), len(self._cores)
        self._server, self._executor, port = listen(servicer, address, credentials, devices)
        return port

    def stop(self) -> None:
        """End all calls, and stop listening."""
        if self._server is not None:
            self._server.stop(_GRACE_S).wait(_GRACE_S + 0.5)
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        for core in self._cores:
            core.channel.close()


class _FrontServicer(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """Method names are gRPC's."""

    def __init__(self, cores: Sequence[_CoreServer]) -> None:
        self._cores = {core.device_id: core for core in cores}
        self._first = cores[0]

    def _core(self, device_id: int) -> _CoreServer:
        """Whose device it is. The first core says what is wrong with any other one."""
        return self._cores.get(device_id, self._first)

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        core = self._core(request.device_id)
        return _unary(core, core.stub.Write, request, context)

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        core = self._core(request.device_id)
        yield from _stream(core, core.stub.Read, request, context)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        core = self._core(request.device_id)
        return _unary(core, core.stub.SetForwardingPipelineConfig, request, context)

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        core = self._core(request.device_id)
        return _unary(core, core.stub.GetForwardingPipelineConfig, request, context)

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        more = ((DEVICES_METADATA, ",".join(map(str, self._cores))),)
        core = self._core(getattr(request, "device_id", 0))  # older stubs do not have it
        return _unary(core, core.stub.Capabilities, request, context, more)

    def StreamChannel(  # noqa: N802
        self, requests: Iterator[Any], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        try:
            first = next(requests, None)
        except grpc.RpcError:
            return  # it has hung up without a word
        if first is None:
            return
        # Every other message than this one belongs to what it opens.
        core = self._core(first.arbitration.device_id)
        all_of_them = itertools.chain([first], requests)
        yield from _stream(core, core.stub.StreamChannel, all_of_them, context)


def _unary(
    core: _CoreServer,
    method: Callable[..., Any],
    request: Any,
    context: grpc.ServicerContext,
    metadata: Sequence[tuple[str, str]] = (),
) -> Any:
    """Make a core's call, and give its answer; `metadata` is sent besides the core's own."""
    call = method.future(request, timeout=_left(context))  # type: ignore[attr-defined]
    if not context.add_callback(call.cancel):
        call.cancel()
    try:
        answer = call.result()
    except grpc.FutureCancelledError:
        context.abort(grpc.StatusCode.CANCELLED, "the caller has hung up")
    except grpc.RpcError as error:
        _pass_on(core, error, context)
    context.set_trailing_metadata((*call.trailing_metadata(), *metadata))
    return answer


def _stream(
    core: _CoreServer,
    method: Callable[..., Any],
    request: Any,
    context: grpc.ServicerContext,
) -> Iterator[Any]:
    """Make a core's call, and give its answers as they come."""
    call = method(request, timeout=_left(context))
    if not context.add_callback(call.cancel):
        call.cancel()
    try:
        yield from call
    except grpc.RpcError as error:
        _pass_on(core, error, context)
    finally:
        call.cancel()


def _left(context: grpc.ServicerContext) -> float | None:
    """Seconds until the caller's deadline; None: it has none, for which gRPC says centuries."""
    left = context.time_remaining()
    return None if left is None or left > _LONGEST_S else left


def _pass_on(core: _CoreServer, error: Any, context: grpc.ServicerContext) -> NoReturn:
    """End a call as the core has ended its own."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        details = f"core {core.number} (device {core.device_id}) does not answer: {details}"
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(code, details)
    raise AssertionError("ServicerContext.abort returned")
