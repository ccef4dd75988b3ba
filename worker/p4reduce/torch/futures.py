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
from contextlib import suppress
from typing import Any

import torch

from p4reduce.torch.threads import next_level


def promise(settle: Callable[[], Any]) -> torch.futures.Future[Any]:
    """Return a future of what a function returns, which waits and may raise.

    `Future.set_exception` would give the exception as the result to those that wait in C++, like
    DDP: they do not know it for one, or end the process. An exception that `then` raises is one
    for all.
    """
    ended: torch.futures.Future[Any] = torch.futures.Future()

    def unpack(done: torch.futures.Future[Any]) -> Any:
        result, error = done.value()
        if error is not None:
            raise error
        return result

    future = in_order(ended.then(unpack))

    def run() -> None:
        result, problem = None, None
        try:
            result = settle()
        except BaseException as error:
            problem = error
        ended.set_result((result, problem))

    next_level().submit(run)
    return future


_ours: weakref.WeakSet[torch.futures.Future[Any]] = weakref.WeakSet()
_then = torch._C.Future.then
_add_done_callback = torch._C.Future.add_done_callback


def in_order(future: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
    """Make a future's callbacks, and those of its `then`, run in order; return it.

    `then` makes futures in C++, so a subclass cannot give them another `then`. A future made in
    Python will not do: only a callback that raises can end a future with an error. So this patches
    torch's class, which then asks whether a future is one of ours.
    """
    if torch._C.Future.then is not _then_in_order:
        torch._C.Future.then = _then_in_order
        torch._C.Future.add_done_callback = _add_done_callback_in_order
    _ours.add(future)
    return future


def _then_in_order(
    self: torch.futures.Future[Any], callback: Callable[[Any], Any]
) -> torch.futures.Future[Any]:
    if self not in _ours:
        return _then(self, callback)
    gate: torch.futures.Future[Any] = torch.futures.Future()
    future = in_order(_then(gate, lambda _: callback(self)))
    _once_complete(self, lambda: gate.set_result(None))
    return future


def _add_done_callback_in_order(
    self: torch.futures.Future[Any], callback: Callable[[Any], Any]
) -> None:
    if self not in _ours:
        _add_done_callback(self, callback)
        return
    gate: torch.futures.Future[Any] = torch.futures.Future()
    _add_done_callback(gate, lambda _: callback(self))
    _once_complete(self, lambda: gate.set_result(None))


def _once_complete(future: torch.futures.Future[Any], job: Callable[[], None]) -> None:
    def run() -> None:
        with suppress(Exception):  # which the callback gets
            future.wait()
        job()

    next_level().submit(run)
