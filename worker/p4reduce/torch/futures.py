# SPDX-License-Identifier: Apache-2.0
"""The futures of collectives: how one fails, and which thread runs its callbacks.

torch runs a callback of `Future.then` in the thread that completes the future. If the future is
complete already, it runs the callback in the thread that calls `then`. So collectives that
callbacks call would differ among ranks in their order and in their route (routes.py). A future of
ours always runs its callbacks in the thread of threads.py, in the order in which they were given.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from p4reduce.torch.accelerators import Accelerator
from p4reduce.torch.errors import without_frames
from p4reduce.torch.threads import next_level


def promise(
    settle: Callable[[], Any], accelerator: Accelerator | None = None
) -> torch.futures.Future[Any]:
    """Return a future of what a function returns, which waits and may raise.

    Args:
        settle: the function.
        accelerator: that has the tensors of the result, and copies them up; None: the host.

    `Future.set_exception` would give the exception as the result to those that wait in C++, like
    DDP: they do not know it for one, or end the process. An exception that `then` raises is one
    for all.
    """
    ended: torch.futures.Future[Any] = _future(accelerator)

    def unpack(done: torch.futures.Future[Any]) -> Any:
        result, error = done.value()
        del done  # whose value has the error, which has this frame
        if error is not None:
            raise error
        return result

    future = in_order(ended.then(unpack), accelerator)

    def run() -> None:
        result, problem = None, None
        try:
            result = settle()
        except BaseException as error:
            problem = without_frames(error)
        with _uploading(accelerator):  # after the copies up: torch records an event
            ended.set_result((result, problem))

    next_level().submit(run)
    return future


_ours: weakref.WeakKeyDictionary[torch.futures.Future[Any], Accelerator | None]
_ours = weakref.WeakKeyDictionary()
_then = torch._C.Future.then
_add_done_callback = torch._C.Future.add_done_callback


def in_order(
    future: torch.futures.Future[Any], accelerator: Accelerator | None = None
) -> torch.futures.Future[Any]:
    """Make a future's callbacks, and those of its `then`, run in order; return it.

    `then` makes futures in C++, so a subclass cannot give them another `then`. A future made in
    Python will not do: only a callback that raises can end a future with an error. So this patches
    torch's class, which then asks whether a future is one of ours.
    """
    if torch._C.Future.then is not _then_in_order:
        torch._C.Future.then = _then_in_order
        torch._C.Future.add_done_callback = _add_done_callback_in_order
    _ours[future] = accelerator
    return future


def _then_in_order(
    self: torch.futures.Future[Any], callback: Callable[[Any], Any]
) -> torch.futures.Future[Any]:
    if self not in _ours:
        return _then(self, callback)
    accelerator = _ours[self]
    gate = _future(accelerator)
    future = in_order(_then(gate, lambda _: callback(_joined(self))), accelerator)
    _once_complete(self, lambda: gate.set_result(None))
    return future


def _add_done_callback_in_order(
    self: torch.futures.Future[Any], callback: Callable[[Any], Any]
) -> None:
    if self not in _ours:
        _add_done_callback(self, callback)
        return
    gate = _future(_ours[self])
    _add_done_callback(gate, lambda _: callback(_joined(self)))
    _once_complete(self, lambda: gate.set_result(None))


def _once_complete(future: torch.futures.Future[Any], job: Callable[[], None]) -> None:
    accelerator = _ours[future]

    def run() -> None:
        with _uploading(accelerator):
            _settle(future)
        job()

    next_level().submit(run)


def _joined(future: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
    """Make the current stream, which torch has made for a callback, wait for a complete future."""
    if _ours[future] is not None:
        _settle(future)
    return future


def _settle(future: torch.futures.Future[Any]) -> None:
    """Wait for a future. Its error is for the callback."""
    try:
        future.wait()
    except Exception as error:
        without_frames(error)


def _future(accelerator: Accelerator | None) -> torch.futures.Future[Any]:
    return torch.futures.Future() if accelerator is None else accelerator.future()


def _uploading(accelerator: Accelerator | None) -> AbstractContextManager[Any]:
    return nullcontext() if accelerator is None else accelerator.uploading()
