# SPDX-License-Identifier: Apache-2.0
"""What the library does with torch's streams, by streams that only write down what is enqueued.

They are as strict as torch's: an object that is entered twice at a time is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

pytestmark = pytest.mark.fake_device
DEADLINE = 60.0  # seconds


class World:
    """A device: what its streams have to do, and which is each thread's current one."""

    def __init__(self) -> None:
        self.streams = 0
        self.done: list[tuple[int, str]] = []
        self._here = threading.local()

    @property
    def current(self) -> int:
        number: int = getattr(self._here, "number", 0)
        return number

    @current.setter
    def current(self, number: int) -> None:
        self._here.number = number

    def stream(self, device: Any = None, **named: int) -> Stream:
        if not named:
            self.streams += 1
        return Stream(self, named.get("stream_id", self.streams))


class Stream:
    device_index, device_type = 0, 1

    def __init__(self, world: World, stream_id: int) -> None:
        self.stream_id = stream_id
        self._world = world
        self._before: int | None = None

    def __enter__(self) -> None:
        if self._before is not None:
            raise RuntimeError("Stream's context should not be initialized.")
        self._before, self._world.current = self._world.current, self.stream_id

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        self._world.current, self._before = self._before, None

    def wait_stream(self, other: Stream) -> None:
        self._world.done.append((self.stream_id, f"waits for stream {other.stream_id}"))

    def wait_event(self, event: Any) -> None:
        self._world.done.append((self.stream_id, f"waits for {event.name}"))

    def record_event(self) -> Any:
        self._world.done.append((self.stream_id, "event"))
        return SimpleNamespace(name=f"event {len(self._world.done)}")


class Tensor:
    def __init__(self, name: str, world: World) -> None:
        self._name, self._world = name, world

    def record_stream(self, stream: Stream) -> None:
        self._world.done.append((stream.stream_id, f"{self._name} is recorded"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(torch, "Stream", made.stream)
    monkeypatch.setattr(
        torch.accelerator, "current_stream", lambda device: Stream(made, made.current)
    )
    return made


def test_what_each_stream_waits_for(world: World) -> None:
    from p4reduce.torch.accelerators import Accelerator

    accelerator = Accelerator(torch.device("cuda", 0))

    def copy(name: str) -> Any:
        def job() -> Iterator[Tensor]:
            world.done.append((world.current, f"copies {name}"))
            yield Tensor(name, world)

        return job

    world.current = 9  # the caller's
    first, second = accelerator.down(copy("a"), copy("b"))
    up = accelerator.up(copy("c"), first)
    accelerator.between(copy("d"))
    accelerator.join(up)
    with accelerator.uploading():
        copy("e")()
        next(copy("e")())
    assert world.current == 9
    assert (first.name, second.name) == ("event 4", "event 7")
    down = world.done[0][0]
    one = ["waits for stream 9", "copies a", "a is recorded", "event"]
    one += ["copies b", "b is recorded", "event"]
    assert [what for stream, what in world.done if stream == down] == one
    upload = next(stream for stream, what in world.done if what == "copies c")
    two = ["waits for event 4", "copies c", "c is recorded", "event", "copies e"]
    assert [what for stream, what in world.done if stream == upload] == two
    (third,) = {stream for stream, _ in world.done} - {down, upload, 9}
    three = ["copies d", "d is recorded", "event"]
    assert [what for stream, what in world.done if stream == third] == three
    assert [what for stream, what in world.done if stream == 9] == [f"waits for {up.name}"]


def test_threads_enqueue_in_one_stream_at_a_time(world: World) -> None:
    """One completes a future after the copies up while another one enqueues such a copy."""
    from p4reduce.torch.accelerators import Accelerator

    accelerator, inside, leave = Accelerator(torch.device("cuda", 0)), *events()
    found: list[int] = []

    def complete() -> None:
        with accelerator.uploading():
            inside.set()
            assert leave.wait(DEADLINE)
            found.append(world.current)

    thread = threading.Thread(target=complete)
    thread.start()
    assert inside.wait(DEADLINE)
    accelerator.up(list, SimpleNamespace(name="event"))
    found.append(world.current)
    leave.set()
    thread.join()
    assert found[0] == 0
    assert found[1] == world.done[0][0]


def events() -> tuple[threading.Event, threading.Event]:
    return threading.Event(), threading.Event()
