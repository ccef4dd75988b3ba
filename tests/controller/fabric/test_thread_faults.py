# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks of the controller that meet an exception nobody expects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_harness import RunningController, SwitchProcess, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from thread_faults import ThreadFault, fault_in_threads

Start = Callable[..., RunningController]


@pytest.mark.parametrize(
    ("thread", "function"), [("p4runtime", "Fabric.install"), ("controller", "Switches.install")]
)
def test_installing_a_job(start: Start, switch: SwitchProcess, thread: str, function: str) -> None:
    """The ranks that wait for the job hear the cause at once, and the next job runs."""
    fault = ThreadFault(thread, function)
    with fault_in_threads(fault):
        controller = start(switch)
        fault.arm()
        ranks = [controller.rank(switch, rank, 2) for rank in range(2)]
        for rank in ranks:
            rank.hello()
        with pytest.raises(ControlError) as refusal:
            ranks[0].await_ready()
        assert fault.raised.is_set()
        assert repr(fault.error) in str(refusal.value)
        for rank in ranks:
            rank.leave()
        assert len(controller.running(switch, 2, job="next")) == 2


@pytest.mark.parametrize("function", ["SwitchClient.receive"])
def test_the_switchs_messages(start: Start, switch: SwitchProcess, function: str) -> None:
    """The controller connects anew, and jobs go on."""
    fault = ThreadFault("packet-in", function)
    with fault_in_threads(fault):
        controller = start(switch)
        ranks = controller.running(switch, 2)
        fault.arm()
        eventually(lambda: "switch-back" in controller.events(), "there is another session")
        assert fault.raised.is_set()
        assert "switch-lost" not in controller.events()
        assert ranks[0].heartbeat().state == pb.RUNNING
        assert len(controller.running(switch, 1, job="new", port=3)) == 1


@pytest.mark.parametrize("function", ["Jobs.expire"])
def test_a_look_at_the_leases(start: Start, switch: SwitchProcess, function: str) -> None:
    """The next look follows: a rank that is silent is lost all the same."""
    fault = ThreadFault("controller", function)
    with fault_in_threads(fault):
        controller = start(switch, lease=1.0)
        ranks = controller.running(switch, 2)
        fault.arm()
        eventually(fault.raised.is_set, "a look has failed")

        def state() -> int:
            return int(ranks[0].heartbeat().state)

        eventually(lambda: state() == pb.FAILED, "rank 1 is lost")
