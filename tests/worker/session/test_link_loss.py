# SPDX-License-Identifier: Apache-2.0
"""A rank that loses its link to the switch, really, while it still reaches the controller."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import p4reduce
import pytest
from fault_system import FaultSystem
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.switches import bmv2
from test_reform import ONES, fail, sum_up
from worker_system import DEADLINE, PORTS, at_once, outcome, silence

WHY_NOT = bmv2.unavailable()
# The ports of the embedded switch are Unix sockets, which cannot be down.
pytestmark = [
    pytest.mark.long,
    pytest.mark.bmv2,
    pytest.mark.root,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.parametrize("fault_system", ["bmv2"], indirect=True),
]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=DEADLINE)


class Cable:
    """From `port`, a worker's end of a switch's port, to an interface further away.

    A bridge is between them, so that the link of the one can be lost without that of the other:
    BMv2 serves none of its ports any more when one of them is down.
    """

    def __init__(self, port: str) -> None:
        self._pairs = VethPorts(PORTS)
        self.interface = self._pairs.worker_side[PORTS]
        self._middle = self._pairs.switch_side[PORTS]
        self._bridge = self._pairs.interface.format(port="b")
        ip("link", "add", self._bridge, "type", "bridge")
        for each in (port, self._middle):
            ip("link", "set", each, "master", self._bridge)
        ip("link", "set", self._bridge, "up")

    def cut(self) -> None:
        """The interface has no carrier any more."""
        ip("link", "set", self._middle, "down")

    def remove(self) -> None:
        ip("link", "del", self._bridge)
        self._pairs.close()


@pytest.fixture
def cable(broken: FaultSystem) -> Iterator[Cable]:
    cable = Cable(broken.interface(3))
    try:
        yield cable
    finally:
        cable.remove()


@pytest.fixture
def trio(broken: FaultSystem, cable: Cable) -> Iterator[list[p4reduce.Communicator]]:
    """Rank 2 is at the cable."""
    job = broken.new_job()
    interfaces = [broken.interface(1), broken.interface(2), cable.interface]
    comms = at_once(
        [
            lambda rank=rank: broken.init(rank, 3, job, interface=interfaces[rank])
            for rank in (0, 1, 2)
        ]
    )
    try:
        sum_up(comms)
        yield comms
    finally:
        at_once([comm.close for comm in comms])


def go_on(comms: list[p4reduce.Communicator]) -> None:
    fewer = at_once([comm.reform for comm in comms])
    try:
        sum_up(fewer)
    finally:
        at_once([comm.close for comm in fewer])


def test_a_rank_whose_cable_is_cut_is_lost(
    broken: FaultSystem, cable: Cable, trio: list[p4reduce.Communicator]
) -> None:
    cable.cut()
    errors = fail(trio)
    for error in errors:
        assert error.ranks == (2,)
        assert "has heard nothing from the switch" in str(error)
        silent = silence(error)
        assert silent is not None
        assert silent >= broken.lease  # and not before
    assert "was itself declared lost" in str(errors[2])
    go_on(trio[:2])


def test_a_rank_whose_own_interface_is_down_is_missing(
    broken: FaultSystem,
    cable: Cable,
    trio: list[p4reduce.Communicator],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It knows that it cannot send, and looks for a way; so it is not silent, and not lost."""
    timeout = 4 * broken.lease
    ip("link", "set", cable.interface, "down")
    *others, own = at_once(
        [lambda comm=comm: outcome(lambda: comm.allreduce(ONES, timeout=timeout)) for comm in trio]
    )
    assert isinstance(own, p4reduce.SwitchUnreachableError), own
    assert f"'{cable.interface}' is down" in str(own)
    assert caplog.text.count("looking for the switch") == 1
    for error in others:
        assert isinstance(error, p4reduce.P4ReduceTimeoutError), error
        assert error.missing == (2,)
        assert timeout <= error.seconds < DEADLINE  # the call's own, not the communicator's
    trio[2].close()  # as its program does after that error
    go_on(trio[:2])
