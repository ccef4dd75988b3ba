# SPDX-License-Identifier: Apache-2.0
"""Answers requests that cannot be decoded, instead of logging a traceback for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from p4reduce.control.client import ANSWERED

_Context = grpc.aio.ServicerContext[Any, Any]


class Decoding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Decodes requests where an error can be sent to the caller."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, changed to accept bytes."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        decode = handler.request_deserializer

        async def decoded(request: bytes, context: _Context) -> Any:
            try:
                return decode(request)
            except Exception:  # protobuf's decoder lets out more kinds than its own
                what = handler_call_details.method.rpartition("/")[2]
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"no request of {what}", ANSWERED
                )

        if handler.response_streaming:

            async def stream(request: bytes, context: _Context) -> AsyncIterator[Any]:
                async for reply in handler.unary_stream(await decoded(request, context), context):
                    yield reply

            return grpc.unary_stream_rpc_method_handler(
                stream, response_serializer=handler.response_serializer
            )

        async def answer(request: bytes, context: _Context) -> Any:
            return await handler.unary_unary(await decoded(request, context), context)

        return grpc.unary_unary_rpc_method_handler(
            answer, response_serializer=handler.response_serializer
        )
