# SPDX-License-Identifier: Apache-2.0
"""No end sleeps while there is something for it to do: rings so small that both sleep all the time.

A lost wake-up shows as a wait that goes on to its deadline, which no other wait here does.
"""

from __future__ import annotations

import os
import random
import select
import socket
import traceback
from collections.abc import Callable

import pytest
from fuzzing import Fuzz
from link_ends import ALL, NO_LINKS, send_some
from p4reduce_native.link import Link, LinkKind, offers

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

LOST_S = 120.0
FRAMES = 4000

Wait = Callable[[bool], None]


def frame(number: int) -> bytes:
    return number.to_bytes(4, "big") * (4 + number % 300)


def waits_by_epoll(end: Link) -> Wait:
    """As the switch waits: level-triggered."""
    epoll = select.epoll()
    epoll.register(end.fileno(), select.EPOLLIN)

    def wait(frames_wait: bool) -> None:
        epoll.modify(end.fileno(), end.events(frames_wait=frames_wait))
        assert epoll.poll(LOST_S), "a wake-up was lost"

    return wait


def waits_by_link(end: Link) -> Wait:
    """As a worker waits."""
    wake = os.eventfd(0, os.EFD_NONBLOCK)

    def wait(frames_wait: bool) -> None:
        poll_began = os.times().elapsed
        end.wait(wake, LOST_S, writable=frames_wait)
        assert os.times().elapsed - poll_began < LOST_S, "a wake-up was lost"

    return wait


def run(end: Link, wait: Wait, seed: int) -> None:
    """Sends all frames and receives as many, and checks them."""
    generator = random.Random(seed)
    sent = came = 0
    while sent < FRAMES or came < FRAMES:
        if sent < FRAMES:
            part = range(sent, min(FRAMES, sent + generator.choice((1, 2, 5, 70))))
            done = send_some(end, [frame(i) for i in part])
            sent += done
            is_stuck = done < len(part)
        else:
            is_stuck = False
        for got in end.receive() if came < FRAMES else ():  # else the other end may have gone
            assert got == frame(came), (came, len(got))
            came += 1
        if is_stuck or (sent == FRAMES and came < FRAMES):
            wait(is_stuck)


@pytest.mark.long
@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        (LinkKind.SHARED, 1),
        (LinkKind.SHARED, 2),
        (LinkKind.SHARED, 16),
        (LinkKind.SINGLE, 0),
    ],
)
def test_two_processes_and_no_lost_wake_up(kind: LinkKind, slots: int, fuzz: Fuzz) -> None:
    for _ in fuzz.rounds(2):
        seed = fuzz.random.randrange(1 << 32)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            try:
                here.close()
                end = Link.connect(there, offers(kind), LOST_S)
                run(end, waits_by_link(end), seed + 1)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        there.close()
        switch = Link.accept(here, ALL, slots)
        try:
            poll = select.poll()
            poll.register(switch.fileno(), select.POLLIN)
            if kind != LinkKind.SINGLE:  # first comes the hello; what is sent before it may be lost
                assert poll.poll(LOST_S * 1000)
                assert switch.receive() == []
            assert switch.kind == kind
            run(switch, waits_by_epoll(switch), seed)
        finally:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            switch.close()
        assert status == 0
