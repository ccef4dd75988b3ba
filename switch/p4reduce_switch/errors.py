# SPDX-License-Identifier: Apache-2.0
"""Errors of the P4Runtime server and their form on the wire.

P4Runtime 1.4.1, "Error Reporting Messages": an error of a whole call is a plain gRPC status. Errors
of single elements of a batch are a status UNKNOWN. Its `grpc-status-details-bin` holds a
`google.rpc.Status` with one `p4.v1.Error` per element, OK ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import grpc
from google.rpc import code_pb2, status_pb2
from p4.v1 import p4runtime_pb2

from p4reduce_switch.state.errors import (
    AlreadyThereError,
    ConstantError,
    FullError,
    InUseError,
    MixedUseError,
    NotThereError,
    StateError,
)

_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# gRPC clients refuse trailing metadata above 8 KiB unless told otherwise (P4Runtime 1.4.1, "gRPC
# Metadata Maximum Size"), and then get nothing at all. The codes of a batch matter more than its
# texts, so texts are left out beyond this size. (Codes alone reach it at about 160 elements.)
_DETAILS_BUDGET_BYTES = 7000
_ELEMENT_BYTES = 46  # of a detail without text: its type's URL, a code, and lengths
# The summary travels twice: as the status message and inside the details.
_SUMMARY_CHARACTERS = 300
_TEXT_BYTES = 2500  # of a status message; gRPC may write each as three, and refuses 8 KiB


class P4RuntimeError(Exception):
    """One request, or one element of a batch, that was refused.

    Attributes:
        code: canonical code, a value of `google.rpc.code_pb2`.
        message: developer-facing text. It may quote letters from a client that have no encoding;
            they are escaped.
    """

    def __init__(self, code: int, message: str) -> None:
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.code = code
        self.message = message


# An error of each code, by its message.
already_exists = partial(P4RuntimeError, code_pb2.ALREADY_EXISTS)
denied = partial(P4RuntimeError, code_pb2.PERMISSION_DENIED)
exhausted = partial(P4RuntimeError, code_pb2.RESOURCE_EXHAUSTED)
internal = partial(P4RuntimeError, code_pb2.INTERNAL)
invalid = partial(P4RuntimeError, code_pb2.INVALID_ARGUMENT)
not_found = partial(P4RuntimeError, code_pb2.NOT_FOUND)
out_of_range = partial(P4RuntimeError, code_pb2.OUT_OF_RANGE)
too_early = partial(P4RuntimeError, code_pb2.FAILED_PRECONDITION)
unavailable = partial(P4RuntimeError, code_pb2.UNAVAILABLE)
unsupported = partial(P4RuntimeError, code_pb2.UNIMPLEMENTED)

_OF_STATE = {
    AlreadyThereError: already_exists,
    ConstantError: denied,
    FullError: exhausted,
    InUseError: too_early,
    MixedUseError: invalid,
    NotThereError: not_found,
}


def of_state(error: StateError) -> P4RuntimeError:
    """What P4Runtime says of a change that the pipeline's state refuses."""
    more = "; use MODIFY to change it" if isinstance(error, AlreadyThereError) else ""
    return _OF_STATE[type(error)](f"{error}{more}")


def status_code(code: int) -> grpc.StatusCode:
    """Return the gRPC status code of a canonical code."""
    return _STATUS_CODES[code]


def abort(context: grpc.ServicerContext, error: P4RuntimeError) -> NoReturn:
    """End the call with `error` as its status."""
    # It may quote a long request of a client.
    text = error.message.encode()[:_TEXT_BYTES].decode(errors="ignore")
    context.abort(status_code(error.code), text)
    raise AssertionError("ServicerContext.abort returned")


def batch_status(results: Sequence[P4RuntimeError | None], what: str) -> status_pb2.Status:
    """Return the `google.rpc.Status` of a batch: one `p4.v1.Error` per element, in the batch's
    order.

    At least one of `results` must be an error.
    """
    failed = [(i, result) for i, result in enumerate(results) if result is not None]
    index, first = failed[0]
    status = status_pb2.Status(
        code=code_pb2.UNKNOWN,
        message=f"{len(failed)} of {len(results)} {what} failed, the first at index {index}: "
        f"{code_pb2.Code.Name(first.code)}: {first.message[:_SUMMARY_CHARACTERS]}",
    )
    budget = _DETAILS_BUDGET_BYTES - status.ByteSize() - _ELEMENT_BYTES * len(results)
    for result in results:
        error = p4runtime_pb2.Error(canonical_code=code_pb2.OK)
        if result is not None:
            error.canonical_code = result.code
            size = len(result.message.encode())
            if size <= budget:
                error.message = result.message
                budget -= size
        status.details.add().Pack(error)
    return status


def abort_batch(
    context: grpc.ServicerContext, results: Sequence[P4RuntimeError | None], what: str
) -> NoReturn:
    """End the call of a batch in which at least one element failed."""
    status = batch_status(results, what)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
    raise AssertionError("ServicerContext.abort returned")
