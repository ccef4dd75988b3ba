# SPDX-License-Identifier: Apache-2.0
"""Joins on several switches at once: all of them, or none."""

from __future__ import annotations

import contextlib
import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from p4reduce import variables
from p4reduce.control.client import ControlClient
from p4reduce.control.tls import TlsError, TlsFiles
from p4reduce.environment import Placement
from p4reduce.errors import AdmissionError, ClosedError, ConfigurationError
from p4reduce.latch import Latch
from p4reduce.options import CommunicatorOptions
from p4reduce.session.job_client import JobClient
from p4reduce.session.joining import Newcomer, form_anew, join
from p4reduce.session.session import Session, SessionSettings
from p4reduce.session.splitting import SplitGroup
from p4reduce.session.waiting import Waiting
from p4reduce.switches.addresses import SwitchAddress, check_several
from p4reduce.switches.side_by_side import SideBySideSession, job_on


def join_all(
    addresses: Sequence[SwitchAddress],
    place: Placement,
    job: str,
    settings: SessionSettings,
    waiting: Callable[[str], Waiting],
) -> Session | SideBySideSession:
    """Join a job on each switch in turn, and return when all ranks are there.

    A switch with several cores is as many switches: the controller names them.

    Args:
        addresses: of the switches.
        place: of this rank.
        job: the name of the whole.
        settings: those of the first switch.
        waiting: returns the deadline for the rank that it is given.

    Raises:
        P4ReduceError: as `p4reduce.init`.
    """
    to_join, sessions = deque(addresses), list[Session]()
    with contextlib.ExitStack() as undo:
        while to_join:
            address, number = to_join.popleft(), len(sessions)
            client, name = _client(address), job_on(job, number)
            token = address.environ.get(variables.TOKEN, "")
            job_client = JobClient(client, place, name, switch=address.switch, token=token)
            connect, ring = address.connect(place.rank, settings.engine), settings.ring
            if ring is not None and number:
                ring = ring.for_another()
            there = replace(settings, connect=connect, ring=ring)
            session = join(job_client, there, waiting(job_client.who))
            undo.callback(session.abandon)
            sessions.append(session)
            # They come before the next switch, and all ranks get the same list.
            to_join.extendleft(reversed(address.to_cores(session.member.cores)))
            check_several(len(sessions) + len(to_join), job)
        undo.pop_all()
    return _together(job, sessions)


class Newcomers:
    """A rank that joins a job on each of several switches, in two steps.

    Args:
        job: the name of the whole.
        each: one per switch.
    """

    def __init__(self, job: str, each: Sequence[Newcomer]) -> None:
        self._job = job
        self._each = each

    @classmethod
    def of_group(
        cls,
        parent: Session | SideBySideSession,
        group: SplitGroup,
        options: CommunicatorOptions,
        deadline: float,
        cancelled: Latch,
    ) -> Newcomers:
        """Return newcomers to a group, by their parent's ports and connections.

        Raises:
            ClosedError: the parent is closed.
        """

        def check() -> None:
            if parent.broken is not None:
                raise copy.copy(parent.broken)

        rank, size = group.ranks.index(parent.rank), len(group.ranks)
        each: list[Newcomer] = []
        sessions = parent.sessions if isinstance(parent, SideBySideSession) else (parent,)
        for number, session in enumerate(sessions):
            before = session.job_client
            try:
                client = before.client.share()
            except ValueError:
                for newcomer in each:
                    newcomer.give_up()
                raise ClosedError("the communicator is closed") from None
            place = Placement(rank, size, before.place.local_rank)
            name = job_on(group.name, number)
            job_client = JobClient(client, place, name, switch=before.switch, token=before.token)
            beside, ring = session.settings.beside_controller, session.settings.ring
            settings = replace(
                session.settings,
                options=options,
                beside_controller=tuple(
                    own for own, rank in enumerate(group.ranks) if rank in beside
                ),
                ring=None if ring is None else ring.for_another(),
            )
            waiting = Waiting(job_client.who, deadline, cancelled, check)
            each.append(Newcomer(job_client, settings, waiting))
        return cls(group.name, each)

    def join_job(self) -> None:
        """Join the job on each switch, as `session.joining.Newcomer`."""
        for newcomer in self._each:
            newcomer.join_job()

    def begin(self) -> Session | SideBySideSession:
        """Start a session on each switch, as `session.joining.Newcomer`."""
        with contextlib.ExitStack() as undo:
            sessions = []
            for newcomer in self._each:
                sessions.append(newcomer.begin())
                undo.callback(sessions[-1].abandon)
            undo.pop_all()
        return _together(self._job, sessions)

    def give_up(self) -> None:
        """Give up all memberships, as `session.joining.Newcomer`."""
        for newcomer in self._each:
            newcomer.give_up()


def form_all_anew(
    session: Session | SideBySideSession, world_size: int, timeout: float, cancelled: Latch
) -> Session | SideBySideSession:
    """Continue after a failed job on each of its switches; see `session.joining.form_anew`.

    If it fails on one of them, call it again; it continues from there.
    """
    if isinstance(session, Session):
        return form_anew(session, world_size, timeout, cancelled)
    end = time.monotonic() + timeout
    session.settle(timeout)
    for number, one in enumerate(session.sessions):
        if number not in session.formed:
            left = max(end - time.monotonic(), 0.1)
            session.formed[number] = form_anew(one, world_size, left, cancelled)
    new = [session.formed[number] for number in range(len(session.sessions))]
    places = {(one.rank, one.world_size) for one in new}
    if len(places) > 1:
        raise AdmissionError(
            f"job {session.job!r} was formed again with different ranks on its switches: "
            + ", ".join(f"rank {rank} of {size}" for rank, size in sorted(places))
            + ". Close this communicator, and call init again"
        )
    together = _together(session.job, new)
    session.end_watch()
    return together


def _together(job: str, sessions: Sequence[Session]) -> Session | SideBySideSession:
    return sessions[0] if len(sessions) == 1 else SideBySideSession(job, sessions)


def _client(address: SwitchAddress) -> ControlClient:
    try:
        files = TlsFiles.from_environment(address.environ)
        return ControlClient(address.controller, files)
    except TlsError as error:
        raise ConfigurationError(str(error)) from None
