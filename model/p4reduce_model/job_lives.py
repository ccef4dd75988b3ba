# SPDX-License-Identifier: Apache-2.0
"""The controller's jobs, with all that can happen to them, in every order.

The real `Jobs` and `Reforming` run without a switch and without a network. A state is reached by
doing its events again from the beginning, so nothing of a job is copied. It is a violation if the
jobs' table does not have a transition, if a slot has two owners, and if a job waits for nobody.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from unittest import mock

from p4reduce_controller.jobs import job as job_module
from p4reduce_controller.jobs import leases
from p4reduce_controller.jobs.job import SLOTS, Attachment, Job, JobMember, MemberState, Reformation
from p4reduce_controller.jobs.job_states import (
    TRANSITIONS,
    JobEvent,
    NoTransitionError,
    Stage,
    after,
)
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.reforming import Reforming
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.topology.switches import ONLY, only_switch
from p4reduce_controller.values.dataclass_json import decode, encode

from p4reduce_model.found import Violation, Walked, explore_by_doing

MOST_STATES = 20_000  # that a case is explored to
LEASE = 8.0
NAME = "job"
JOB_SLOTS = 400  # two jobs fit on the switch, a third one does not
RARE = {(Stage.REFORMED, JobEvent.TAKEN_BACK, Stage.CLEARED)}  # takes eleven steps in a row
ONWARDS = ("joins", "attaches", "is on the switch", "is back", "is left")
ONWARD = 8  # times as likely in a walk by chance as what stops a job
IN_TABLE, SLOTS_ONCE, WAITS = "in the table", "slots once", "waits for somebody"

Step = tuple[str, Callable[[], object]]


class World:
    """The jobs, and a switch that does what it was asked when its turn comes.

    Args:
        ranks: of a job.
        most_jobs: the most lives of the name, new jobs of its survivors included.
    """

    def __init__(self, ranks: int, most_jobs: int) -> None:
        self._ranks = ranks
        self._most_jobs = most_jobs
        self._made = 0
        self._now = 0.0
        self._writing: list[Job] = []
        self._removing: list[Job] = []
        self._on_switch: dict[int, range] = {}  # what entries lead to, by incarnation
        self._asking: list[tuple[Reformation, JobMember]] = []
        self._lost = False
        self._begin([])

    def _begin(self, kept: list[Job]) -> None:
        self._jobs = Jobs(
            self,
            only_switch(0x0A4DFFFE, 0x027034726564, range(1, self._ranks + 1)),
            lease=LEASE,
            next_incarnation=self._next_incarnation,
            clock=lambda: self._now,
            wall_clock=lambda: self._now,
            default_slots=JOB_SLOTS,
        )
        self._jobs.restore(kept)
        self._reforming = Reforming(self._jobs, self)
        self._jobs.resume()

    def _next_incarnation(self) -> int:
        self._made += 1
        return self._made

    # -- What the jobs ask for (jobs.Listener) -----------------------------------------

    def on_event(self, kind: str, job: Job | None, text: str) -> None:
        """Nobody looks at it."""

    def on_settled(self, job: Job) -> None:
        """Nobody waits for it."""

    def look(self, job: Job) -> None:
        """The switch has what it should have."""

    def on_changed(self, *jobs: Job) -> None:
        """The reformations are looked at after each event anyway."""

    def configure(self, job: Job) -> None:
        """From now on, entries may be there."""
        self._writing.append(job)
        self._on_switch[job.incarnation] = job.root.slots

    def withdraw(self, job: Job) -> None:
        """They are gone before anything else is written."""
        self._writing = [each for each in self._writing if each is not job]
        del self._on_switch[job.incarnation]

    def remove(self, job: Job) -> None:
        """They will be gone."""
        self._writing = [each for each in self._writing if each is not job]
        self._removing.append(job)

    # -- What can happen -----------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Return what can happen now, each with a text that is the same in every run."""
        steps: list[Step] = [
            ("the switch is lost", self._lose_switch)
            if not self._lost
            else ("the switch is back", self._switch_back),
            ("the session breaks", self._break_session),
            ("the controller restarts", self._restart),
            ("the job is deleted", lambda: self._jobs.delete(NAME)),
            ("everybody falls silent", lambda: self._pass(leases.DESERTED * LEASE)),
        ]
        if self._made < self._most_jobs or self._jobs.living(NAME) is not None:
            ranks = range(self._ranks)
            steps += [(f"rank {rank} joins", partial(self._join, rank)) for rank in ranks]
        for job in self._jobs.all:
            for member in job.members.values():
                steps += self._asks(job, member)
                if member.active:
                    steps += self._of_member(job, member)
        for index, (reformation, member) in enumerate(self._asking):
            text = f"call {index} for a new job, of {self._name(reformation.job)}, ends"
            steps.append((text, partial(self._end_asking, reformation, member)))
        if self._writing:
            job = self._writing[0]
            steps.append((f"{self._name(job)} is on the switch", self._configured))
            steps.append((f"the switch refuses {self._name(job)}", self._refuse))
        if self._removing:
            steps.append((f"{self._name(self._removing[0])} is off the switch", self._release))
        return steps

    def events(self) -> list[str]:
        """Return the texts alone."""
        return [text for text, _ in self.steps()]

    def _of_member(self, job: Job, member: JobMember) -> list[Step]:
        who = f"rank {member.rank} of {self._name(job)}"
        steps: list[Step] = [
            (
                f"{who} leaves",
                lambda: self._jobs.leave(job.incarnation, member.rank, member.nonce),
            )
        ]
        if member.state is MemberState.JOINED:
            at = Attachment(
                member.rank + 1, 0x020000000001 + member.rank, 0x0A4D0001 + member.rank, 9
            )
            steps.append(
                (
                    f"{who} attaches",
                    lambda: self._jobs.hello(job.incarnation, member.rank, member.nonce, at),
                )
            )
        if not member.waiting:
            steps.append((f"{who} falls silent", lambda: self._silence(member)))
        return steps

    def _asks(self, job: Job, member: JobMember) -> list[Step]:
        """Also those who are lost or went on in a new job may ask, and must be answered right."""
        if job.stage in (Stage.GATHERING, Stage.CONFIGURING):
            return []
        if any(each is member for _, each in self._asking):
            return []
        if self._made == self._most_jobs and job.successor is None:
            return []
        who = f"rank {member.rank} of {self._name(job)}"
        ask = partial(self._ask, job, member)
        return [
            (f"{who} asks for a new job of who is left", partial(ask, 0)),
            (f"{who} asks for one as large", partial(ask, self._ranks)),
            (f"{who} asks for one with all", partial(ask, 0, intact=True)),
        ]

    def _name(self, job: Job) -> str:
        return f"job {job.incarnation}"

    def _join(self, rank: int) -> None:
        self._jobs.join(NAME, rank, self._ranks, 0, "host", 1)

    def _ask(self, job: Job, member: JobMember, size: int, *, intact: bool = False) -> None:
        asked = self._reforming.ask(job, member, size, 0, "", intact=intact)
        self._asking.append((asked, member))

    def _end_asking(self, reformation: Reformation, member: JobMember) -> None:
        self._asking.remove((reformation, member))
        try:
            if reformation.settled.is_set():
                self._reforming.place(reformation, member)
        finally:
            self._reforming.withdraw(reformation, member)

    def _silence(self, silent: JobMember) -> None:
        """Nothing is heard of one rank until it is lost; of all others, all is."""
        for _ in range(64):
            self._now += LEASE / 8
            for job in self._jobs.all:
                for member in job.active:
                    if member is not silent:
                        self._jobs.heartbeat(job.incarnation, member.rank, member.nonce)
            self._jobs.expire()
            if not silent.active:
                return

    def _pass(self, seconds: float) -> None:
        self._now += seconds
        self._jobs.expire()

    def _configured(self) -> None:
        self._jobs.on_configured(self._writing.pop(0))

    def _refuse(self) -> None:
        self._jobs.fail(self._writing.pop(0), Cause.SWITCH_REFUSED, "no")

    def _release(self) -> None:
        job = self._removing.pop(0)
        self._on_switch.pop(job.incarnation, None)
        self._jobs.release(job)

    def _lose_switch(self) -> None:
        self._lost = True
        self._jobs.on_part_lost(ONLY, "it is gone")

    def _switch_back(self) -> None:
        self._lost = False
        self._jobs.on_part_back(ONLY)

    def _break_session(self) -> None:
        """What the old session was asked is not done; the switch is as it was."""
        if not self._lost:
            self._writing.clear()
            self._jobs.on_part_back(ONLY)

    def _restart(self) -> None:
        kept = [decode(Job, encode(job)) for job in self._jobs.worth_keeping()]
        self._writing, self._removing, self._asking = [], [], []
        # The take-up leaves these entries only.
        stay = [job for job in kept if job.stage in (Stage.RUNNING, Stage.STRANDED)]
        self._on_switch = {job.incarnation: job.root.slots for job in stay}
        self._begin(kept)
        if self._lost:
            self._jobs.on_part_lost(ONLY, "it is gone")

    # -- What it comes to ------------------------------------------------------------------

    def do(self, text: str) -> None:
        """Let one of `steps` happen. Raises Violation."""
        step = dict(self.steps())[text]
        try:
            step()
            self._reforming.advance()
        except JobRefusedError:
            self._reforming.advance()
        except NoTransitionError as error:
            raise Violation(IN_TABLE, str(error)) from None
        self._check()

    def _check(self) -> None:
        held = [job for job in self._jobs.all if not job.released]
        slots = [slot for job in held for slot in job.root.slots]
        if len(set(slots)) != len(slots) or SLOTS - self._jobs.holdings.slots_free(ONLY) != len(
            slots
        ):
            raise Violation(SLOTS_ONCE, "a slot has two owners, or none and is not free")
        for incarnation, led_to in self._on_switch.items():
            job = self._jobs.of(incarnation)
            if job not in held or job.root.slots != led_to:
                raise Violation(SLOTS_ONCE, f"entries of job {incarnation} lead to free slots")
        for job in self._jobs.all:
            if not self._awaits_somebody(job):
                raise Violation(WAITS, f"{self._name(job)} is {job.stage.name}, for ever")

    def _awaits_somebody(self, job: Job) -> bool:
        match job.stage:
            case Stage.GATHERING:
                return self._lost or not job.complete
            case Stage.CONFIGURING:
                return job in self._writing
            case Stage.RUNNING | Stage.STRANDED:
                return bool(job.active) and job.incarnation in self._on_switch
            case Stage.CLEARING | Stage.ENDING:
                return job in self._removing
        return True

    def state(self) -> Hashable:
        """Return what distinguishes this state from others, without times and nonces."""
        asking = tuple(
            (
                reformation.job.incarnation,
                member.rank,
                reformation.settled.is_set(),
                reformation.refusal is None,
                reformation is reformation.job.reformation,
            )
            for reformation, member in self._asking
        )
        return (
            tuple(self._of_job(job) for job in self._jobs.all if job.stage is not Stage.ENDED),
            tuple(job.incarnation for job in self._writing),
            tuple(job.incarnation for job in self._removing),
            frozenset(self._on_switch),
            asking,
            self._lost,
            self._made,
        )

    def _of_job(self, job: Job) -> Hashable:
        members = tuple(
            (rank, member.state, bool(member.waiting)) for rank, member in job.members.items()
        )
        places: Hashable = None
        if job.successor is not None:
            new = self._jobs.of(job.successor.incarnation)
            there = {} if new is None else new.members
            places = tuple(
                (rank, place.rank, place.rank in there and there[place.rank].nonce == place.nonce)
                for rank, place in job.successor.places.items()
            )
        asked = None
        if job.reformation is not None:
            asked = tuple(
                (rank, ask.world_size, ask.intact) for rank, ask in job.reformation.asked.items()
            )
        return (
            job.incarnation,
            job.stage,
            job.world_size,
            job.elastic,
            job.cause,
            members,
            places,
            asked,
            self._jobs.latest(NAME) is job,
        )


@dataclass(frozen=True)
class JobCase:
    """How much is explored: the number of ranks, and of lives of the name."""

    ranks: int
    lives: int

    @property
    def name(self) -> str:
        """What it is called in the report."""
        return f"controller's jobs, {self.ranks} of {self.lives}"

    def world(self) -> World:
        """Return its beginning."""
        return World(self.ranks, self.lives)

    def explore(self, limit: int = MOST_STATES) -> Walked:
        """Visit all states and check them; give up after `limit` states."""
        found = Walked(table=TRANSITIONS)
        with _noting(found):
            explore_by_doing(found, self.world, min(limit, MOST_STATES))
        return found


JOBS_SMALL = [JobCase(1, 1)]
JOBS_LARGE = [JobCase(1, 2), JobCase(2, 2)]  # not done at MOST_STATES


def follow(case: JobCase, way: Iterable[str]) -> Walked:
    """Take just these steps."""
    found, world = Walked(table=TRANSITIONS), case.world()
    with _noting(found):
        for text in way:
            found.transitions += 1
            world.do(text)
    return found


def wander(case: JobCase, chance: random.Random, walks: int, steps: int = 40) -> Walked:
    """Take steps by chance, in so many walks or until every transition but rare ones was taken."""
    found = Walked(table=TRANSITIONS)
    with _noting(found):
        for _ in range(walks):
            world, trace = case.world(), list[str]()
            for _ in range(steps):
                possible = world.events()
                weights = [ONWARD if text.endswith(ONWARDS) else 1 for text in possible]
                trace += chance.choices(possible, weights)
                found.transitions += 1
                try:
                    world.do(trace[-1])
                except Violation as violation:
                    found.violation, found.trace = violation, tuple(trace)
                    return found
            if found.missing <= RARE:
                break
    return found


@contextlib.contextmanager
def _noting(found: Walked) -> Iterator[None]:
    """Note each transition that a job takes."""

    def noted(stage: Stage, event: JobEvent) -> Stage:
        to = after(stage, event)
        found.walked.add((stage, event, to))
        return to

    with mock.patch.object(job_module, "after", noted):
        yield
