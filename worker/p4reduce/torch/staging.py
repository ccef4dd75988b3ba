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
from typing import Any, NamedTuple

import torch

from p4reduce.torch.accelerators import (
    Accelerator,
    DeviceEvent,
    DeviceWork,
    is_plain,
)
from p4reduce.torch.call_order import CallOrder, QueuedEnding, QueuedHandle
from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.futures import promise
from p4reduce.torch.tensors import nothing
from p4reduce.torch.work import OutcomeWork, StartedWork, Wait, WorkOutcome, unsettled

Tensors = Sequence[torch.Tensor]
Waiter = Callable[[QueuedHandle], Wait]


class StagedPart(NamedTuple):
    """A collective of an accelerator's tensors, or of pieces of them.

    Attributes:
        start: starts the collective of the host's tensors.
        down: what the device does before, copies to the host included.
        up: what the device does when the collective has ended.
    """

    start: Callable[[], OutcomeWork]
    down: DeviceWork
    up: DeviceWork


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

    Attributes:
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
        self.uploads = uploads

    @classmethod
    def of_several(
        cls,
        works: Sequence[OutcomeWork],
        tensors: Any,
        finish: Callable[[], None] = nothing,
        writes: Tensors = (),
    ) -> OutcomeWork:
        """Return a work that ends when some others have, and a function was called after them.

        Args:
            works: of the host's tensors, and of those of one accelerator.
            tensors: the result.
            finish: enqueues what is to be done after the copies up.
            writes: the device's tensors to which it writes.
        """
        staged = [work for work in works if isinstance(work, StagedWork)]
        if not staged:
            return OutcomeWork.of_all(works, tensors, finish)
        accelerator, uploads = staged[0]._accelerator, list[DeviceEvent]()

        def wait(timeout: float | None) -> None:
            for work in works:
                work.outcome.settle(timeout)

        def last() -> Tensors:
            finish()
            return writes

        def end() -> None:
            uploads.extend(event for work in staged for event in work.uploads)
            uploads.append(accelerator.up(last, uploads[-1]))

        outcome = WorkOutcome(wait, end, lambda: bool(unsettled(one.outcome for one in works)))
        return cls(outcome, tensors, accelerator, uploads)

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the copies up are enqueued. The caller's stream waits for them."""
        super().wait(timeout)
        for event in self.uploads:
            self._accelerator.join(event)
        return True

    def block_current_stream(self) -> None:
        """Make the current stream wait, as `wait` does."""
        self.wait()

    def synchronize(self) -> None:
        """Wait until the copies up are done."""
        self.wait()
        for event in self.uploads:
            event.synchronize()

    def is_completed(self) -> bool:
        """Whether it has failed, or its results are in the tensors."""
        return super().is_completed() and all(event.query() for event in self.uploads)

    def _promise(self, settle: Callable[[], Any]) -> torch.futures.Future[Any]:
        return promise(settle, self._accelerator)


def start_staged(
    accelerator: Accelerator,
    order: CallOrder,
    waiter: Waiter,
    *,
    part: StagedPart,
    result: Any,
) -> StagedWork:
    """Start a collective when what it needs has been copied to this host.

    Args:
        accelerator: that has the tensors.
        order: of the calls; its threads make this one, and enqueue the copies up.
        waiter: returns the function that waits for a handle, and raises torch's errors.
        part: the whole collective.
        result: what the work's future gives.
    """
    (copied,) = accelerator.down(part.down)

    def begin() -> QueuedEnding:
        copied.synchronize()
        return StartedWork(part.start())

    handle = order.later(begin)
    work = _staged(
        accelerator,
        waiter(handle),
        lambda: [accelerator.up(part.up, copied)],
        lambda: not handle.done(),
        result,
    )
    order.endings.submit(work.outcome.settle_quietly)
    return work


def start_in_parts(
    accelerator: Accelerator,
    order: CallOrder,
    waiter: Waiter,
    *,
    parts: Sequence[StagedPart],
    finish: Callable[[], None],
    writes: Tensors,
    result: Any,
) -> StagedWork:
    """Start a collective for each part, when that has been copied to this host.

    The caller only enqueues the copies down: the thread of the group's order makes the calls.

    Args:
        accelerator: that has the tensors.
        order: as for `start_staged`.
        waiter: as for `start_staged`.
        parts: in the order in which all ranks start them.
        finish: enqueues what is to be done after the copies up.
        writes: the device's tensors to which it writes.
        result: what the work's future gives.
    """
    copied = accelerator.down(*(part.down for part in parts))
    ended: list[StagedWork] = []

    def begin() -> QueuedEnding:
        works = []
        for part, event in zip(parts, copied, strict=True):
            event.synchronize()
            works.append(_put_up(accelerator, part.start(), part.up, event))
            order.endings.submit(works[-1].outcome.settle_quietly)
        whole = StagedWork.of_several(works, result, finish, writes)
        order.endings.submit(whole.outcome.settle_quietly)
        ended.append(whole)
        return StartedWork(whole)

    handle = order.later(begin)
    return _staged(
        accelerator,
        waiter(handle),
        lambda: ended.pop().uploads,
        lambda: not handle.done(),
        result,
    )


def _put_up(
    accelerator: Accelerator, work: OutcomeWork, up: DeviceWork, after: DeviceEvent
) -> StagedWork:
    return _staged(
        accelerator,
        work.outcome.settle,
        lambda: [accelerator.up(up, after)],
        lambda: not work.outcome.poll(),
        None,
    )


def _staged(
    accelerator: Accelerator,
    wait: Wait,
    put: Callable[[], Sequence[DeviceEvent]],
    pending: Callable[[], bool],
    result: Any,
) -> StagedWork:
    """Return a work whose copies up are enqueued by the first thread that finds its sum there.

    Args:
        accelerator: that has the tensors.
        wait: as of `WorkOutcome`, for the sum.
        put: enqueues the copies up, and returns their events.
        pending: as of `WorkOutcome`.
        result: what the work's future gives.
    """
    uploads: list[DeviceEvent] = []
    outcome = WorkOutcome(wait, lambda: uploads.extend(put()), pending)
    return StagedWork(outcome, result, accelerator, uploads)
