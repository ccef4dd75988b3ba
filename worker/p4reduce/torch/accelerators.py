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

import numpy.typing as npt
import torch

from p4reduce.torch.tensors import write

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]

DeviceWork = Callable[[], Iterable[torch.Tensor]]
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


def copies_down(pairs: Pairs) -> DeviceWork:
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


def copies_up(pairs: Pairs) -> DeviceWork:
    """Return the job that copies from the host to the device; `pairs` as for `copies_down`."""

    def copy() -> Iterator[torch.Tensor]:
        for host, tensor in pairs:
            write(tensor, host, non_blocking=True)
            yield tensor

    return copy


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor of a device. On the CPU it is the same memory.

    Elsewhere it is a copy, which the current stream makes and nobody waits for.
    """
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class Accelerator:
    """Streams of a device: one copies to this host, one back, and one works between the two.

    Args:
        device: any but the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down: Any = torch.Stream(device=device)
        self._up: Any = torch.Stream(device=device)
        self._between: Any = torch.Stream(device=device)

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return host memory for a tensor: contiguous, and not initialised."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def down(self, *jobs: DeviceWork) -> list[DeviceEvent]:
        """Enqueue work and copies to the host, after what the caller's stream has now.

        Args:
            jobs: called here, in order, with that stream as the current one; each enqueues work.

        Returns:
            An event after each job.
        """
        self._down.wait_stream(torch.accelerator.current_stream(self._device))
        return self._enqueue(self._down, *jobs)

    def between(self, job: DeviceWork) -> DeviceEvent:
        """As `down`, in a stream that waits for no other one.

        What `down` has enqueued may wait for the rest of a backward pass.
        """
        return self._enqueue(self._between, job)[0]

    def up(self, job: DeviceWork, after: DeviceEvent) -> DeviceEvent:
        """Enqueue copies from the host, and work, as `down`, but after an event."""
        self._up.wait_event(after)
        return self._enqueue(self._up, job)[0]

    def _enqueue(self, stream: Any, *jobs: DeviceWork) -> list[DeviceEvent]:
        events = []
        with _current(stream):
            for job in jobs:
                for tensor in job():
                    tensor.record_stream(stream)
                events.append(stream.record_event())
        return events

    def join(self, event: DeviceEvent) -> None:
        """Make the caller's stream wait for an event. Does not wait itself."""
        torch.accelerator.current_stream(self._device).wait_event(event)

    def uploading(self) -> AbstractContextManager[Any]:
        """Make the stream of uploads the current one: what is enqueued comes after them."""
        return _current(self._up)

    def future(self) -> torch.futures.Future[Any]:
        """Return a future whose value may have tensors of the device."""
        return torch.futures.Future(devices=[self._device])


def _current(stream: Any) -> AbstractContextManager[Any]:
    """Make a stream the current one of this thread.

    By an object of its own: torch keeps in the object which stream was the current one before, and
    several threads use the same stream (pytorch/pytorch issue 176560).
    """
    own: AbstractContextManager[Any] = torch.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    return own


def is_available() -> bool:
    """Whether tensors of this process may be an accelerator's."""
    available: bool = torch.accelerator.is_available()
    return available


_lock = threading.Lock()
_made: dict[torch.device, Accelerator] = {}


def accelerator_of(tensor: torch.Tensor) -> Accelerator | None:
    """Return the accelerator that has a tensor; None: it is in this host's memory."""
    if tensor.is_cpu:
        return None
    device = tensor.device
    with _lock:
        if device not in _made:
            _made[device] = Accelerator(device)
        return _made[device]
