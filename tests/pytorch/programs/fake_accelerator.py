# SPDX-License-Identifier: Apache-2.0
"""An accelerator without hardware: its streams are threads, which take their time at random.

Its tensors are the host's. What the library reads or writes by itself, and not by a copy in a
stream, shows as wrong numbers, because the streams are late.
"""

from __future__ import annotations

import gc
import queue
import random
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from p4reduce.torch import accelerators
from p4reduce.torch.accelerators import DeviceWork

DEADLINE = 100.0  # seconds for a stream to get somewhere
_POISON = 0x7B  # in every byte of memory that nobody has: a large number in all dtypes


class Event:
    """A point of a stream."""

    def __init__(self) -> None:
        self._reached = threading.Event()

    def reach(self) -> None:
        self._reached.set()

    def query(self) -> bool:
        return self._reached.is_set()

    def synchronize(self) -> None:
        assert self._reached.wait(DEADLINE), "a stream does not get to its event"


class Stream:
    """Runs jobs in order, in a thread, each after a while."""

    def __init__(self, draw: random.Random, longest: float) -> None:
        self._draw = draw
        self._longest = longest
        self._jobs: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def enqueue(self, job: Callable[[], Any]) -> None:
        self._jobs.put(job)

    def enqueue_steps(self, job: DeviceWork, record: Callable[[torch.Tensor], None]) -> None:
        """As `enqueue`, with a while between any two steps of the job; records what it gives."""

        def run() -> None:
            for tensor in job():
                record(tensor)
                self._linger()

        self.enqueue(run)

    def event(self) -> Event:
        event = Event()
        self.enqueue(event.reach)
        return event

    def _linger(self) -> None:
        time.sleep(self._draw.uniform(0, self._longest))

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            self._linger()
            job()
            del job


class HostMemory:
    """Memory that goes to the next tensor at once, and is no number until it is written.

    Attributes:
        held: how many tensors have some.
    """

    def __init__(self) -> None:
        self.held = 0
        self._lock = threading.RLock()  # a tensor may be collected while this thread has it
        self._free: defaultdict[int, list[bytearray]] = defaultdict(list)

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        size = max(like.numel() * like.element_size(), 1)
        with self._lock:
            block = self._free[size].pop() if self._free[size] else bytearray(size)
            self.held += 1
        array = np.frombuffer(block, np.uint8)
        array[:] = _POISON
        # The array is there as long as any tensor of this memory.
        weakref.finalize(array, self._give_back, block)
        flat = torch.from_numpy(array)[: like.numel() * like.element_size()]
        return flat.view(like.dtype).view(like.shape)

    def held_in_the_end(self) -> int:
        """Return how many tensors keep theirs when all threads and streams are through."""
        end = time.monotonic() + DEADLINE
        while self.held and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        return self.held

    def _give_back(self, block: bytearray) -> None:
        block[:] = bytes([_POISON]) * len(block)
        with self._lock:
            self._free[len(block)].append(block)
            self.held -= 1


class FakeAccelerator:
    """As `p4reduce.torch.accelerators.Accelerator`.

    Args:
        seed: of all delays.
        kernels: whether the caller's work is enqueued, by `kernel`. Otherwise the caller works on
            the host, and waits where a device's stream would.
        longest: seconds that a stream takes for a job, at most.

    Attributes:
        lent: bytes of host memory that were given out.
        memory: the host's, that goes to copies.
        recorded: a stream's name, and the address of a tensor that it was recorded on.
    """

    def __init__(self, seed: int, *, kernels: bool, longest: float) -> None:
        names = ("caller", "down", "up", "between")
        self._caller, self._down, self._up, self._between = (
            Stream(random.Random(f"{seed} {name}"), longest) for name in names
        )
        self._kernels = kernels
        self.memory = HostMemory()
        self.lent = 0
        self.recorded: set[tuple[str, int]] = set()

    def hold(self, streams: Sequence[str], gate: threading.Event) -> None:
        """Let streams wait for somebody to set an event."""

        def wait() -> None:
            assert gate.wait(DEADLINE), "nobody lets the stream go on"

        for name in streams:
            getattr(self, f"_{name}").enqueue(wait)

    def kernel(self, job: Callable[[], Any]) -> None:
        """Do something with tensors, after what the caller's stream does before it."""
        self._caller.enqueue(job)

    def finish(self) -> None:
        """Wait for the caller's stream."""
        self._caller.event().synchronize()

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        self.lent += tensor.numel() * tensor.element_size()
        return self.memory.tensor(tensor)

    def down(self, *jobs: DeviceWork) -> list[Event]:
        self._after(self._down, self._caller.event())
        return [self._enqueue("down", job) for job in jobs]

    def between(self, job: DeviceWork) -> Event:
        return self._enqueue("between", job)

    def up(self, job: DeviceWork, after: Event) -> Event:
        self._after(self._up, after)
        return self._enqueue("up", job)

    def join(self, event: Event) -> None:
        if self._kernels:
            self._after(self._caller, event)
        else:
            event.synchronize()

    @contextmanager
    def uploading(self) -> Iterator[None]:
        self._up.event().synchronize()
        yield

    def future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future()

    def _enqueue(self, name: str, job: DeviceWork) -> Event:
        def record(tensor: torch.Tensor) -> None:
            self.recorded.add((name, tensor.untyped_storage().data_ptr()))

        stream: Stream = getattr(self, f"_{name}")
        stream.enqueue_steps(job, record)
        return stream.event()

    def _after(self, stream: Stream, event: Event) -> None:
        stream.enqueue(event.synchronize)


def install(owns: Callable[[torch.Tensor], bool], fake: FakeAccelerator) -> None:
    """Make a fake accelerator the owner of some tensors, in this process."""

    def accelerator_of(tensor: torch.Tensor) -> Any:
        return fake if owns(tensor) else None

    accelerators.accelerator_of = accelerator_of
    accelerators.is_available = lambda: True
