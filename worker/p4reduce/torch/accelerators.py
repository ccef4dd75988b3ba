# SPDX-License-Identifier: Apache-2.0
"""Devices whose tensors are copied to this host and back: their streams and events.

By `torch.Stream` and `torch.Event`, so that every accelerator of torch will do. Host memory is
pinned; torch's allocator for it waits for the copies that use a tensor before it gives the memory
to another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from p4reduce.torch.tensors import write

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]

Job = Callable[[], Iterable[torch.Tensor]]
"""Enqueues work in the current stream. Gives the device's tensors of other streams that it uses, so
that their memory is not given away before."""


class DeviceEvent(Protocol):
    """A point of a stream."""

    def query(self) -> bool:
        """Whether the device has got there."""

    def synchronize(self) -> None:
        """Wait until the device has got there, without the interpreter's lock."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be copied in a stream; neither a sparse nor a quantized one can."""
    return tensor.layout == torch.strided and not tensor.is_quantized


def copies_down(pairs: Pairs) -> Job:
    """Return the job that copies from the device to the host.

    Args:
        pairs: host memory, and the device's tensor. What is not plain has been copied already.
    """

    def copy() -> Iterator[torch.Tensor]:
        for host, tensor in pairs:
            if is_plain(tensor):
                host.copy_(tensor.detach(), non_blocking=True)
                yield tensor

    return copy


def copies_up(pairs: Pairs) -> Job:
    """Return the job that copies from the host to the device; `pairs` as for `copies_down`."""

    def copy() -> Iterator[torch.Tensor]:
        for host, tensor in pairs:
            write(tensor, host, non_blocking=True)
            yield tensor

    return copy


class Accelerator:
    """Two streams of a device: one copies to this host, one back.

    Args:
        device: any but the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down: Any = torch.Stream(device=device)
        self._up: Any = torch.Stream(device=device)

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return host memory for a tensor: contiguous, and not initialised."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def down(self, job: Job, *, after_caller: bool = True) -> DeviceEvent:
        """Enqueue work and copies to the host.

        Args:
            job: enqueues them, at once.
            after_caller: whether they come after what the caller's stream has now; after what
                `down` has enqueued before they come anyway.

        Returns:
            An event after them.
        """
        if after_caller:
            self._down.wait_stream(torch.accelerator.current_stream(self._device))
        return self._enqueue(self._down, job)

    def up(self, job: Job, after: DeviceEvent) -> DeviceEvent:
        """Enqueue copies from the host, and work, as `down`, but after an event."""
        self._up.wait_event(after)
        return self._enqueue(self._up, job)

    def _enqueue(self, stream: Any, job: Job) -> DeviceEvent:
        with stream:
            for tensor in job():
                tensor.record_stream(stream)
            event: DeviceEvent = stream.record_event()
        return event

    def join(self, event: DeviceEvent) -> None:
        """Make the caller's stream wait for an event. Does not wait itself."""
        torch.accelerator.current_stream(self._device).wait_event(event)

    def uploading(self) -> AbstractContextManager[Any]:
        """Make the stream of uploads the current one: what is enqueued comes after them."""
        stream: AbstractContextManager[Any] = self._up
        return stream

    def future(self) -> torch.futures.Future[Any]:
        """Return a future whose value may have tensors of the device."""
        return torch.futures.Future(devices=[self._device])


def is_available() -> bool:
    """Whether tensors of this process may be an accelerator's."""
    available: bool = torch.accelerator.is_available()
    return available


_lock = threading.Lock()
_made: dict[torch.device, Accelerator] = {}


def accelerator_of(tensor: torch.Tensor) -> Accelerator | None:
    """Return the accelerator that has a tensor; None: it is in this host's memory."""
    device = tensor.device
    if device.type == "cpu":
        return None
    with _lock:
        if device not in _made:
            _made[device] = Accelerator(device)
        return _made[device]
