# SPDX-License-Identifier: Apache-2.0
"""Converts this library's errors to those that users of torch.distributed expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from p4reduce.errors import (
    ControllerUnreachableError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
    WorkerLostError,
)

ErrorT = TypeVar("ErrorT", bound=BaseException)

_NETWORK = (ControllerUnreachableError, SwitchUnreachableError)


@contextmanager
def torch_errors() -> Iterator[None]:
    """Raise this library's errors as torch's, by `as_torch_error`."""
    try:
        yield
    except P4ReduceError as error:
        raise as_torch_error(error) from error


def as_torch_error(error: P4ReduceError, global_ranks: Sequence[int] = ()) -> RuntimeError:
    """Return `DistNetworkError` if switch or controller are unreachable, else `DistBackendError`.

    Both derive from RuntimeError. The message is the library's own, which names ranks by their
    number in the group.

    Args:
        error: of this library.
        global_ranks: the global rank of each rank of the group, where they differ.
    """
    # Scripts written for other backends recognise a timeout by this word.
    late = "the timeout has passed: " if isinstance(error, P4ReduceTimeoutError) else ""
    text = f"p4reduce: {late}{error}"
    if isinstance(error, WorkerLostError) and error.ranks and global_ranks:
        known = [global_ranks[rank] for rank in error.ranks if rank < len(global_ranks)]
        if known:
            text += f" (by their global numbers: {', '.join(map(str, known))})"
    kind = dist.DistNetworkError if isinstance(error, _NETWORK) else dist.DistBackendError
    translated: RuntimeError = kind(text)
    translated.__cause__ = error
    return translated


def without_frames(error: ErrorT) -> ErrorT:
    """Return an error that is kept, without its tracebacks and those of its causes.

    Their frames have the tensors of the call, and its future. Torch's future has the error: the
    garbage collector does not see that, so all of them would stay.
    """
    one: BaseException | None = error
    seen = set[int]()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
