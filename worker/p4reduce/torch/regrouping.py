# SPDX-License-Identifier: Apache-2.0
"""`reform`: continue with the ranks that are there, and let in those that came back.

The survivors of a lost rank form their job again (`Communicator.reform`), which needs no store of
torch: rank 0 may be the one that is lost. A rank that comes back joins a job of two ranks whose
name says that it waits. At the next `reform` the survivors' rank 0 finds it in the controller's
list, joins it there and tells it the new group's job. Then torch makes its default group anew.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from p4reduce.checks import check_timeout
from p4reduce.communicator import Communicator
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.tls import TlsFiles
from p4reduce.environment import Placement
from p4reduce.errors import ControllerUnreachableError, P4ReduceError
from p4reduce.initialize import init
from p4reduce.job_network import named
from p4reduce.switches.addresses import switch_addresses
from p4reduce.torch.communicators import job_base, new_name
from p4reduce.torch.delegate import own_address
from p4reduce.torch.errors import torch_errors
from p4reduce.torch.group import ours
from p4reduce.torch.held_port import HeldPort
from p4reduce.torch.names import NAME
from p4reduce.torch.rank_zero import broadcast_text
from p4reduce.torch.routes import Formed
from p4reduce.torch.store import connected

_WAITING = "a rank that waits"  # in the name of a newcomer's job
_MEETING = 10.0  # seconds for a newcomer that waits, to be there
_CLOSING = 5.0  # seconds to list jobs

_port = HeldPort()  # of a process that came back


class _NewGroup(NamedTuple):
    """What rank 0 says about a group: its job, torch's store, and the numbers of ranks."""

    job: str
    store: str
    size: int
    rank: int = 0


def reform(group: Any = None, *, timeout: float | None = None) -> Any:
    """Make the default process group anew, of the ranks that are there.

    All survivors call it after the error of a lost rank. They keep their order and are numbered
    without gaps. All ranks may also call it at any other time, such as each epoch. A process
    without a process group calls it to come back: it waits until the others call it, and gets the
    last number. If nobody is lost and nobody waits, the group stays as it is.

    Other groups (`new_group`) end with the default group. Make them anew, and DDP too. Collectives
    in flight have failed or are complete: continue from a step that all have done, and broadcast
    rank 0's state. A process can come back if P4REDUCE_CONTROLLER and P4REDUCE_INTERFACE name the
    network (docs/ft.md).

    Args:
        group: the default group; None: the same.
        timeout: seconds for all of it. None: 30; to come back: 1800.

    Returns:
        The default process group: `torch.distributed.get_rank` and `get_world_size` are the new
        ones.

    Raises:
        ValueError: `group` is another group, or not of this backend.
        DistBackendError, DistNetworkError: ranks are missing, this rank was declared lost, or the
            group failed otherwise than by a lost rank; says which. It may be called again.
    """
    if timeout is not None:
        check_timeout(timeout)
    if not dist.is_initialized():
        if group is not None:
            raise ValueError(f"group={group!r}: a process without a process group comes back")
        return _come_back(timeout or 1800.0)
    world = dist.group.WORLD
    own = ours(world)
    if own is None or group not in (None, world):
        raise ValueError(
            f"group={group!r}: only the default group is made anew, if its backend is {NAME!r}; "
            "then call new_group again"
        )
    if own.channel is None:
        return world  # it is alone, and nobody could tell it of others
    seconds = timeout or 30.0
    with torch_errors():
        return _go_on(world, own, seconds)


def _go_on(world: Any, own: Any, seconds: float) -> Any:
    """Continue as one of those that are there."""
    end = time.monotonic() + seconds
    before: Communicator = own.channel.comm
    interface = own.interface
    comm = before if before.broken is None else before.reform(timeout=seconds)
    with ExitStack() as meetings:
        newcomers = _meet_waiting(comm, interface, meetings)
        count = int(broadcast_text(comm, str(len(newcomers))))
        if comm is before and not count:
            return world
        told, store = "", None
        if comm.rank == 0:
            address = own_address() or socket.gethostname()
            store = _listening(address)
            new = _NewGroup(new_name("all ranks"), f"{address} {store.port}", comm.size + count)
            for number, newcomer in enumerate(newcomers):
                broadcast_text(newcomer, json.dumps(new._replace(rank=comm.size + number)))
            told = json.dumps(new)
        new = _NewGroup(*json.loads(broadcast_text(comm, told)))
        store = store or _connected(new, end)
        if count:
            joined = _joined(new._replace(rank=comm.rank), interface, end)
            comm.close()
            comm = joined
    return _made_anew(comm, store, interface, own.timeout)


def _come_back(seconds: float) -> Any:
    """Wait for the others as a newcomer."""
    end = time.monotonic() + seconds
    with torch_errors():
        interface = _port.take(0)
        name = new_name(_WAITING)
        with init(1, 2, job=name, timeout=seconds, interface=interface) as meeting:
            new = _NewGroup(*json.loads(broadcast_text(meeting, "")))
        comm = _joined(new, interface, max(end, time.monotonic() + _MEETING))
        return _made_anew(comm, _connected(new, end), interface, None)


def _made_anew(
    comm: Communicator, store: Any, interface: str | None, timeout: timedelta | None
) -> Any:
    if dist.is_initialized():
        dist.destroy_process_group()
    options = {} if timeout is None else {"timeout": timeout}
    dist.init_process_group(
        NAME,
        store=store,
        rank=comm.rank,
        world_size=comm.size,
        pg_options=Formed(comm, interface),
        **options,
    )
    return dist.group.WORLD


def _meet_waiting(
    comm: Communicator, interface: str | None, meetings: ExitStack
) -> list[Communicator]:
    """Return a communicator with each newcomer, as rank 0; the others return none."""
    if comm.rank or not named():
        return []
    met = []
    for name in _waiting(interface):
        try:
            meeting = init(0, 2, job=name, timeout=_MEETING, interface=interface)
        except P4ReduceError:
            continue  # it has given up meanwhile
        met.append(meetings.enter_context(meeting))
    return met


def _waiting(interface: str | None) -> Sequence[str]:
    """Return the jobs of those that wait, in the order of their names."""
    start = f"{job_base()}: {_WAITING}, "
    [address, *_] = switch_addresses(None, interface, Placement(0, 1, 0), "")
    with ControlClient(address.controller, TlsFiles.from_environment(address.environ)) as control:
        try:
            jobs = control.call(control.stub.ListJobs, pb.ListJobsRequest(), timeout=_CLOSING).jobs
        except ControlError as error:
            raise ControllerUnreachableError(f"nobody says which ranks wait: {error}") from None
    names = {job.name for job in jobs if job.state == pb.FORMING and job.name.startswith(start)}
    return sorted(names)


def _joined(new: _NewGroup, interface: str | None, end: float) -> Communicator:
    left = max(end - time.monotonic(), 1.0)
    return init(new.rank, new.size, job=new.job, timeout=left, interface=interface)


def _listening(address: str) -> Any:
    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, multi_tenant=True)


def _connected(new: _NewGroup, end: float) -> Any:
    host, port = new.store.split()
    left = max(end - time.monotonic(), 1.0)
    return connected(host, int(port), left, wait_for_workers=False)
