# SPDX-License-Identifier: Apache-2.0
"""Chooses the ports of a running switch for the ranks of one more job.

Two things say that a port is taken: the controller, which knows the port of every rank that it has
heard of, and a name in the kernel. The process that assigns the port holds the name until its ranks
have ended. It is an abstract Unix socket's name, so it is free again however its holder ends.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce_common.polling import attempts

from p4reduce_lab.errors import ArgumentsError

# A rank of a job that is over may still be in the controller's table: it may take 3 s to leave, and
# then its lease runs.
_ENDING_S = 10.0
_LOOK_AGAIN_S = 0.2


@contextmanager
def ports_for(controller: str, ranks: int, first: int | None = None) -> Iterator[list[int]]:
    """Reserve a port per rank while the block runs.

    Args:
        controller: the address of the switch's controller; several, with commas between them, if
            each of several switches has its own. The ranks reach switches side by side at ports
            of the same numbers.
        ranks: how many ports.
        first: rank 0's port, the others' follow; None: any that no other job has.

    Yields:
        The number of each rank's port. Those of a tree's leaves are counted through, from 1.

    Raises:
        ArgumentsError: there are fewer ports, or fewer free ones for 10 s.
        ControlError: a controller does not answer.
    """
    every, taken = _ports(controller)
    if ranks > len(every):
        raise ArgumentsError(
            f"{ranks} ranks need as many ports, but the switch of the controller at {controller} "
            f"has {len(every)}: start `p4reduce-lab up --ports {ranks}`"
        )
    wanted = every if first is None else list(range(first, first + ranks))
    if missing := set(wanted) - set(every):
        raise ArgumentsError(
            f"--first-port {first} and {ranks} ranks need the ports {first} to {wanted[-1]}, but "
            f"the switch has no port {min(missing)}: its ports are {_text(every)}"
        )
    with ExitStack() as held:
        for _ in attempts(_ENDING_S, _LOOK_AGAIN_S):
            got = _reserve(controller, wanted, taken, ranks, held)
            if len(got) == ranks:
                break
            held.close()
            taken = _ports(controller)[1]
        else:
            busy = [port for port in wanted if port not in got]
            raise ArgumentsError(
                f"{ranks} ranks need as many ports, but other jobs have {_text(busy)} of "
                f"{_text(wanted)}: wait for them, or start `p4reduce-lab up` with more --ports"
            )
        yield got


def _ports(controller: str) -> tuple[list[int], set[int]]:
    """Return the numbers of all ports, and of those that attached ranks have."""
    every: list[int] = []
    taken: set[int] = set()
    for address in controller.split(","):
        with ControlClient(address) as control:
            numbers = _numbers(control)
            every = every or list(dict.fromkeys(numbers.values()))
            taken |= _taken(control, numbers)
    return every, taken


def _reserve(
    controller: str, wanted: list[int], taken: set[int], ranks: int, held: ExitStack
) -> list[int]:
    """Claim up to one port per rank, until `held` is closed."""
    got: list[int] = []
    for port in wanted:
        if len(got) == ranks:
            break
        if port not in taken and (claim := _claim(controller, port)) is not None:
            held.enter_context(claim)
            got.append(port)
    return got


def _numbers(control: ControlClient) -> dict[tuple[str, int], int]:
    """The number of each port with a rank, by its switch and its number there."""
    switches = control.call(control.stub.ListSwitches, pb.ListSwitchesRequest()).switches
    ports = [(switch.name, port) for switch in switches for port in switch.ports]
    if any(switch.HasField("uplink") for switch in switches):  # a tree
        return {place: number for number, place in enumerate(ports, start=1)}
    return {place: place[1] for place in ports}


def _taken(control: ControlClient, numbers: dict[tuple[str, int], int]) -> set[int]:
    jobs = control.call(control.stub.ListJobs, pb.ListJobsRequest()).jobs
    places = {
        (member.switch, member.port)
        for job in jobs
        if job.state in (pb.FORMING, pb.RUNNING)
        for member in job.members
        if member.state == "attached"
    }
    return {numbers[place] for place in places if place in numbers}


def _claim(controller: str, port: int) -> socket.socket | None:
    """Return what holds the port among all that hand ports out; None: another one has it."""
    name = hashlib.sha256(f"{controller} {port}".encode()).hexdigest()[:32]
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0p4reduce-port-{name}")
    except OSError:
        claim.close()
        return None
    return claim


def _text(ports: list[int]) -> str:
    """ "1 to 4, 7"."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][1] + 1:
            runs[-1][1] = port
        else:
            runs.append([port, port])
    return ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in runs)
