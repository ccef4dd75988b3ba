# SPDX-License-Identifier: Apache-2.0
"""Both ends of a link, for tests."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from p4reduce_native.link import Link, LinkKind, offers, why_not

DEADLINE_S = 120.0
HELLO = b"P4RL" + bytes([1, 0b100, 0, 0])  # version 1; shared memory is wished

NO_LINKS = why_not()
ALL = offers(LinkKind.SHARED)


@contextmanager
def link(kind: LinkKind, slots: int = 0) -> Iterator[tuple[Link, Link]]:
    """The ends of switch and worker, agreed on `kind`."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    switch = Link.accept(here, ALL, slots)
    with answering(switch) if kind != LinkKind.SINGLE else nullcontext():
        worker = Link.connect(there, offers(kind), DEADLINE_S)
    try:
        assert switch.kind == worker.kind == kind
        yield switch, worker
    finally:
        worker.close()
        switch.close()


@contextmanager
def answering(switch: Link) -> Iterator[None]:
    """Meanwhile `switch` takes its first message, in a thread."""

    def answer() -> None:
        poll = select.poll()
        poll.register(switch.fileno(), select.POLLIN)
        if poll.poll(DEADLINE_S * 1000):
            assert switch.receive() == []

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def random_frames(generator: random.Random, count: int) -> list[bytes]:
    """Frames of any allowed length, the common ones more often."""
    lengths = (14, 15, 16, 17, 78, 590, 1102, 2047, 2048)
    return [
        generator.randbytes(generator.choice((*lengths, generator.randrange(14, 2049))))
        for _ in range(count)
    ]


def receive_all(end: Link, count: int) -> list[bytes]:
    """The next `count` frames, or what came within the deadline."""
    frames: list[bytes] = []
    while len(frames) < count:
        poll = select.poll()
        poll.register(end.fileno(), end.events(frames_wait=False))
        if not poll.poll(DEADLINE_S * 1000):
            break
        frames += end.receive()
    return frames


def send_some(end: Link, frames: list[bytes]) -> int:
    """How many of `frames` were taken."""
    try:
        return end.send(frames)
    except BlockingIOError:
        return 0
