# SPDX-License-Identifier: Apache-2.0
"""The events of a controller, and of its successor at the same address."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator

import grpc
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError, NoAnswerError
from p4reduce_common.polling import retry
from p4reduce_common.threads import new_thread

from p4reduce_controller.events import REMEMBERED

_PAUSE = 0.5  # seconds between two looks at whether a controller is there

_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # How calls end that were under way.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)


def is_gone(error: ControlError) -> bool:
    """Whether an error means that no controller answers, so that trying again may help."""
    if isinstance(error, NoAnswerError):
        return not error.lasting
    return error.code in _GONE


def events(
    client: ControlClient, job: str, recent: int, say: Callable[[str], object]
) -> Iterator[pb.Event]:
    """Yield events for ever. If the controller goes away, wait for the next one.

    Args:
        client: of the controller.
        job: whose events; empty: those of all jobs.
        recent: how many past events to begin with, at most.
        say: called with a text when the controller is gone, and when one answers again.

    Raises:
        ControlError: the controller answers and refuses.
    """
    begun = time.time()
    # Of what was seen, by the controller's clock, which this machine's may be ahead of.
    latest: float | None = None
    again = False
    while True:
        try:
            for event in client.watch(job, REMEMBERED if again else recent):
                if not again or event.time > (begun if latest is None else latest):
                    yield event
                    latest = event.time if latest is None else max(latest, event.time)
        except ControlError as error:
            if not is_gone(error):
                raise
        say(f"the controller at {client.address} is gone; waiting for one (Ctrl-C ends this)")
        _wait_for_one(client)
        say(f"a controller at {client.address} answers again")
        again = True


def _wait_for_one(client: ControlClient) -> None:
    def ask(left: float) -> None:
        client.call(client.stub.ListSwitches, pb.ListSwitchesRequest())

    time.sleep(_PAUSE)
    retry(ask, ControlError, math.inf, _PAUSE, is_gone)


def follow(client: ControlClient, job: str, say: Callable[[str], object]) -> Iterator[pb.Event]:
    """Yield events from now on; see `events`.

    A separate thread receives them. So Ctrl-C never interrupts gRPC while it holds a lock.
    """
    arrived: queue.SimpleQueue[pb.Event | BaseException] = queue.SimpleQueue()

    def receive() -> None:
        try:
            for event in events(client, job, 0, say):
                arrived.put(event)
        except ControlError as error:
            arrived.put(error)

    new_thread(receive, "events", arrived.put).start()
    while True:
        event = arrived.get()
        if isinstance(event, BaseException):
            raise event
        yield event
