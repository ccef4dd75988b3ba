# SPDX-License-Identifier: Apache-2.0
"""Devices whose tensors are copied to this host and back: their streams and events.

By `torch.Stream` and `torch.Event`, so that every accelerator of torch will do. Host memory is
pinned; torch's allocator for it waits for the copies that use a tensor before it gives the memory
to another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from p4reduce.torch.tensors import write

Pairs = Iterable[tuple[torch.Tensor, torch.Tensor]]


class DeviceEvent(Protocol):
    """A point of a stream."""

    def query(self) -> bool:
        """Whether the device has got there."""

    def synchronize(self) -> None:
        """Wait until the device has got there, without the interpreter's lock."""


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

    def download(self, pairs: Pairs) -> DeviceEvent:
        """Enqueue copies to the host, after what the caller's stream has now.

        Args:
            pairs: of host memory and the device's tensor.

        Returns:
            An event after the copies.
        """
        self._down.wait_stream(torch.accelerator.current_stream(self._device))
        with self._down:
            for host, tensor in pairs:
                host.copy_(tensor.detach(), non_blocking=True)
                tensor.record_stream(self._down)
            event: DeviceEvent = self._down.record_event()
        return event

    def upload(self, pairs: Pairs, after: DeviceEvent) -> DeviceEvent:
        """Enqueue copies from the host, as `download`, but after an event."""
        self._up.wait_event(after)
        with self._up:
            for host, tensor in pairs:
                write(tensor, host, non_blocking=True)
                tensor.record_stream(self._up)
            event: DeviceEvent = self._up.record_event()
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
