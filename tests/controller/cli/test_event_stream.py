# SPDX-License-Identifier: Apache-2.0
"""Which events come again from the next controller, by whose clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce_controller.cli.event_stream import events


class Controllers:
    """A client of one controller after another, each of which ends after its events."""

    address = "unix:/c"
    stub = SimpleNamespace(ListSwitches=None)

    def __init__(self, *lives: list[float]) -> None:
        self._lives = list(lives)

    def watch(self, _job: str, recent: int) -> Iterator[pb.Event]:
        for moment in self._lives.pop(0):
            yield pb.Event(time=moment, text=f"{moment:g}")
        raise ControlError(grpc.StatusCode.UNAVAILABLE, "it ended")

    def call(self, *_: Any) -> Any:
        return None


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_an_events_time_is_compared_with_that_of_the_last_one(ahead: float) -> None:
    """Also where the clock of the machine that watches is ahead of the controller's."""
    now = time.time() - ahead
    client: Any = Controllers([now], [now - 10, now, now + 1, now + 2])
    seen = itertools.islice(events(client, "", 1, lambda _: None), 3)
    assert [event.time for event in seen] == [now, now + 1, now + 2]
