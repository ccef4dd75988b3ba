# SPDX-License-Identifier: Apache-2.0
"""Collectives of an accelerator's tensors: copies to this host and back, beside the caller.

    caller's stream ──event──▸ copies down ──▸ turn in the group's order: the collective
                                                       │
    caller's stream ◂──event── copies up ◂─────────────┘

The caller is not blocked: a thread waits for the copies down, outside of the interpreter's lock,
and then starts the collective with the host's copies. That is the thread of `CallOrder`, so ranks
whose copies take longer call their collectives in the same order. `Work.wait` blocks the host until
the copies up are enqueued, and makes the caller's stream wait for them, as NCCL's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from p4reduce.torch.accelerators import Accelerator, DeviceEvent, Job, is_plain
from p4reduce.torch.call_order import QueuedEnding, QueuedHandle
from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.futures import promise
from p4reduce.torch.tensors import nothing
from p4reduce.torch.threads import FutureThread
from p4reduce.torch.work import OutcomeWork, StartedWork, WorkOutcome, unsettled

Tensors = Sequence[torch.Tensor]
Waiter = Callable[[QueuedHandle], Callable[[float | None], None]]

_uploads = FutureThread("p4reduce-uploads")


def host_copies(accelerator: Accelerator, value: Any) -> Any:
    """Return arguments with host memory in the place of tensors, in lists as well.

    A sparse or quantized tensor is copied at once, and the caller waits for that.
    """
    if isinstance(value, list):
        return [host_copies(accelerator, one) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    return accelerator.room(value) if is_plain(value) else value.cpu()


@methods_eagerly
class StagedWork(OutcomeWork):
    """A collective of an accelerator's tensors.

    Args:
        outcome: of the collective and of enqueueing the copies up.
        tensors: its result, as the future gives it.
        accelerator: that has the tensors.
        uploads: the events after the copies up, when the outcome is settled.
    """

    def __init__(
        self,
        outcome: WorkOutcome,
        tensors: Any,
        accelerator: Accelerator,
        uploads: list[DeviceEvent],
    ) -> None:
        super().__init__(outcome, tensors)
        self._accelerator = accelerator
        self._uploads = uploads

    @classmethod
    def of_several(
        cls, works: Sequence[OutcomeWork], tensors: Any, finish: Callable[[], None] = nothing
    ) -> OutcomeWork:
        """Return a work that ends when some others have, and a function was called after them.

        Args:
            works: of the host's tensors, and of those of one accelerator.
            tensors: the result.
            finish: enqueues what is to be done after the copies up.
        """
        staged = [work for work in works if isinstance(work, StagedWork)]
        if not staged:
            return OutcomeWork.of_all(works, tensors, finish)
        accelerator, uploads = staged[0]._accelerator, list[DeviceEvent]()

        def wait(timeout: float | None) -> None:
            for work in works:
                work.outcome.settle(timeout)

        def end() -> None:
            with accelerator.uploading():
                finish()
            uploads.extend(event for work in staged for event in work._uploads)
            uploads.append(accelerator.up(list, uploads[-1]))  # after what `finish` enqueued

        outcome = WorkOutcome(wait, end, lambda: bool(unsettled(one.outcome for one in works)))
        return cls(outcome, tensors, accelerator, uploads)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the copies up are enqueued. The caller's stream waits for them."""
        super().wait(timeout)
        for event in self._uploads:
            self._accelerator.join(event)
        return True

    def block_current_stream(self) -> None:
        """Make the current stream wait, as `wait` does."""
        self.wait()

    def synchronize(self) -> None:
        """Wait until the copies up are done."""
        self.wait()
        for event in self._uploads:
            event.synchronize()

    def is_completed(self) -> bool:
        """Whether it has failed, or its results are in the tensors."""
        return super().is_completed() and all(event.query() for event in self._uploads)

    def _promise(self, settle: Callable[[], Any]) -> torch.futures.Future[Any]:
        return promise(settle, self._accelerator)


def start_staged(
    accelerator: Accelerator,
    queue: Callable[[Callable[[], QueuedEnding]], QueuedHandle],
    waiter: Waiter,
    *,
    start: Callable[[], OutcomeWork],
    down: Job,
    up: Job,
    result: Any,
) -> StagedWork:
    """Start a collective when what it needs has been copied to this host.

    Args:
        accelerator: that has the tensors.
        queue: calls a function when its turn has come, in another thread.
        waiter: returns the function that waits for a handle, and raises torch's errors.
        start: starts the collective of the host's tensors.
        down: what the device does before, copies to the host included.
        up: what the device does when the collective has ended.
        result: what the work's future gives.
    """
    copied = accelerator.down(down)

    def begin() -> QueuedEnding:
        copied.synchronize()
        return StartedWork(start())

    handle = queue(begin)
    uploads: list[DeviceEvent] = []

    def finish() -> None:
        uploads.append(accelerator.up(up, copied))

    outcome = WorkOutcome(waiter(handle), finish, lambda: not handle.done())
    _uploads.submit(outcome.settle_quietly)
    return StagedWork(outcome, result, accelerator, uploads)
