# SPDX-License-Identifier: Apache-2.0
"""The controller: jobs on one side, switches on the other, and an event loop between them.

All state belongs to the event loop. Blocking work has its own threads: one per switch
(fabric/switch_session.py), and one for the disk (storage/keeping.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass

from p4reduce.wire.format import Hello, parse_hello
from p4reduce_common.threads import watch_task

from p4reduce_controller.events import ControllerEvent, EventLog, RateLimit
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.p4client import PacketIn, SwitchError, WriteRefusedError
from p4reduce_controller.fabric.probes import Probes
from p4reduce_controller.fabric.schema import TableRow
from p4reduce_controller.fabric.slots import SwitchSlotState
from p4reduce_controller.fabric.switch_session import BREAKS, SessionStatus
from p4reduce_controller.fabric.switches import Switches, TakenSwitch
from p4reduce_controller.jobs import comparing, leases
from p4reduce_controller.jobs.comparing import Called, Comparison
from p4reduce_controller.jobs.job import Attachment, Job, JobMember, port_text, ranks_text
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.jobs.reforming import ReformedPlace, Reforming
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.settling import Settlement
from p4reduce_controller.jobs.tokens import operator_token
from p4reduce_controller.settings import ControllerSettings
from p4reduce_controller.storage.incarnation import Incarnations, Reserve
from p4reduce_controller.storage.job_table import (
    JobTableHeader,
    SwitchState,
    TableFile,
    assemble,
    encode_job,
)
from p4reduce_controller.storage.keeping import JobTableWriter
from p4reduce_controller.topology.switches import ONLY
from p4reduce_controller.values.counts import CounterValue, RankCounts
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac

log = logging.getLogger(__name__)

HELLO_REFUSALS_LOGGED = 10  # a second, and as many at once; all are counted
LONGEST_WAIT = 86400.0  # seconds
KEPT_WITHIN = 1 / 10  # of a lease; ranks wait for the answer to a heartbeat for a quarter
EVENT_LEVELS = {
    "rank-lost": logging.WARNING,
    "link-lost": logging.WARNING,
    "job-failed": logging.ERROR,
    "switch-lost": logging.ERROR,
}
"""How grave events are in the log; the others are information."""


class NotReadyInTimeError(Exception):
    """Not all ranks joined in time. The message and `missing` name the ranks that did not.

    `missing`: their numbers.
    """

    def __init__(self, message: str, missing: Iterable[int]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


@dataclass(frozen=True)
class Start:
    """What a controller starts with: its switches, and the jobs that its predecessor left."""

    switches: Mapping[str, TakenSwitch]
    file: TableFile
    jobs: list[Job]


class Controller:
    """Runs jobs on switches. Create and use it in the event loop.

    Raises ValueError for jobs that contradict each other.
    """

    def __init__(self, settings: ControllerSettings, start: Start) -> None:
        self.settings = settings
        self.events = EventLog()
        self.stopping = asyncio.Event()  # what ends from now on is ended by us
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal_notes = RateLimit(
            HELLO_REFUSALS_LOGGED, HELLO_REFUSALS_LOGGED, time.monotonic
        )
        self.operator_token = operator_token(settings.state_directory)
        self._incarnations = Reserve(Incarnations(settings.state_directory).next)
        self.jobs = Jobs(
            self,
            settings.topology,
            lease=settings.lease,
            next_incarnation=self._incarnations.next,
            clock=time.monotonic,
            wall_clock=time.time,
            default_slots=settings.default_slots,
        )
        self.jobs.restore(start.jobs)
        self._reforming = Reforming(self.jobs, self)
        self._advancing = False
        self._switches = Switches(self, settings.topology, start.switches)
        self.probes = Probes(
            self, settings.topology, self._switches.packet_out, self._switches.is_there
        )
        self._table_writer = JobTableWriter(self._table, start.file.write)

    # -- Life --------------------------------------------------------------------------

    def start(self) -> None:
        """Start listening to the switches and checking the leases."""
        if self._start.jobs:
            anew = [name for name, taken in self._start.switches.items() if not taken.kept]
            began = "the switch" if anew == [ONLY] else ", ".join(anew)
            how = f"{began} was restarted or reloaded" if anew else "the switch is as it was"
            self.on_event(
                "jobs-taken-up", None, f"{len(self._start.jobs)} from a former life; {how}"
            )
            for name in anew:
                self.jobs.on_part_lost(name, "it was restarted or reloaded while no controller ran")
            for name in anew:
                self.jobs.on_part_back(name)
        for link in self.probes.unproven:
            self.jobs.on_part_unproven(link, "no probe has come through it yet")
        self._switches.start()
        self.probes.start()
        self.jobs.resume()
        self._table_writer.on_changed()  # at least the pipeline's cookie
        self._spawn(self._watch_leases())

    async def stop(self, timeout: float = 1.2) -> None:
        """Stop within `timeout` seconds: end all jobs and remove them from the switches.

        With `keep_jobs` in the settings, jobs stay for the next controller.
        """
        self.stopping.set()
        self.probes.stop()
        if self.settings.keep_jobs:
            # Before the calls that wait are broken off: those would give up their places.
            await self._table_writer.close()
        else:
            self.jobs.close("the controller is shutting down")
            removals = [task for task in self._tasks if task.get_name() == "removal"]
            if removals:
                await asyncio.wait(removals, timeout=timeout)
            await self._table_writer.close()
            if not self.jobs.worth_keeping():
                self._start.file.remove()
        self._incarnations.close()
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await self._switches.stop()

    def abandon(self) -> None:
        """Stop at once, as if killed. Nothing on disk or on the switches changes."""
        self.stopping.set()
        self.probes.stop()
        self._table_writer.abandon()
        self._incarnations.close()
        self._switches.abandon()
        for task in self._tasks:
            task.cancel()

    async def _watch_leases(self) -> None:
        lease, look = self.settings.lease, leases.LOOK
        while True:
            before = time.monotonic()
            await asyncio.sleep(look * lease)
            if time.monotonic() - before > (look + leases.LATE) * lease:
                self.jobs.stood_still()
            try:
                look = leases.LOOK if self.jobs.expire() else leases.IDLE_LOOK
            except Exception:
                log.exception("the look at the leases failed")

    # -- The job table -----------------------------------------------------------------

    def _table(self) -> bytes:
        """Return what the file is to hold now."""
        header = JobTableHeader(
            [
                SwitchState(
                    name,
                    self.settings.servers[name].address,
                    self.settings.servers[name].device_id,
                    fabric.ground.ip,
                    fabric.ground.mac,
                    fabric.cookie,
                )
                for name, fabric in self._switches.fabrics.items()
            ]
        )
        return assemble(header, map(_encoded, self.jobs.worth_keeping()))

    async def keep(self) -> None:
        """Wait until everything that an answer relies on is on disk. Raises JobRefusedError."""
        try:
            await self._table_writer.kept()
        except OSError as error:
            raise JobRefusedError(
                Cause.NOT_KEPT, f"the controller cannot write its job table: {error}"
            ) from None

    async def keep_if_possible(self) -> None:
        """As `keep`, but return after a while even if the disk does not answer."""
        with contextlib.suppress(JobRefusedError, asyncio.TimeoutError):
            await asyncio.wait_for(self.keep(), KEPT_WITHIN * self.settings.lease)

    # -- Reports of the switches (switches.SwitchesHandler) ----------------------------------

    def on_packet_in(self, switch: str, packet: PacketIn) -> None:
        """Handle a frame that a switch sent to the controller: a HELLO of a rank, or a probe."""
        try:
            hello = parse_hello(packet.frame)
        except ValueError as error:
            where = port_text(switch, packet.port)
            self.jobs.refuse_hello(switch, None, f"from {where}: {error}")
            return
        if self.probes.on_probe(switch, packet.port, hello):
            return
        at = _attachment(switch, packet.port, hello)
        self.jobs.hello(hello.job, hello.rank, hello.nonce, at)

    def on_switch_lost(self, switch: str, reason: str) -> None:
        """Report the loss of a switch to its jobs."""
        self.on_event("switch-lost", None, reason if switch == ONLY else f"{switch}: {reason}")
        for link in self.probes.on_switch_lost(switch):
            self.jobs.on_part_unproven(
                link, f"switch {switch} was lost, and no probe has come through since"
            )
        self.jobs.on_part_lost(switch, reason)

    def on_switch_away(self, switch: str, reason: str) -> None:
        """Tell new ranks why the switch is still missing."""
        self.jobs.on_part_still_lost(switch, reason)

    def on_switch_back(self, switch: str) -> None:
        """Let the jobs of a switch continue."""
        which = "" if switch == ONLY else f"{switch} at "
        address = self.settings.servers[switch].address
        self.on_event("switch-back", None, f"connected with {which}{address}")
        self._table_writer.on_changed()  # the pipeline's cookie may be another
        self.jobs.on_part_back(switch)

    # -- Reports of the probes (probes.ProbeHandler) ----------------------------------------------

    def on_link_lost(self, link: str, reason: str) -> None:
        """Report the loss of a link to the jobs that use it."""
        self.on_event("link-lost", None, f"{link}: {reason}")
        self.jobs.on_part_lost(link, reason)

    def on_link_back(self, link: str) -> None:
        """Let the jobs of a link continue."""
        self.on_event("link-back", None, f"{link} works")
        self.jobs.on_part_back(link)

    # -- What the jobs ask for (roster.JobListener) -----------------------------------------

    def on_event(self, kind: str, job: Job | None, text: str) -> None:
        """Publish an event to watchers, and log it."""
        if kind == "hello-refused":
            held_back = self._refusal_notes.passes()
            if held_back is None:
                return
            if held_back:
                text += f" (and {held_back} more before)"
        name, incarnation = (job.name, job.incarnation) if job else ("", 0)
        self.events.publish(ControllerEvent(time.time(), name, incarnation, kind, text))
        level = EVENT_LEVELS.get(kind, logging.INFO)
        log.log(level, "%s %s", kind, f"{name!r} {incarnation}: {text}" if job else text)

    def configure(self, job: Job) -> None:
        """Install a job on its switches."""
        topology = self.settings.topology
        layouts = lay_out(job, topology, plan(job, topology))
        installation = self._switches.install(job.incarnation, layouts)
        job.installing = self._spawn(self._finish_configuring(job, installation))

    async def _finish_configuring(
        self, job: Job, installation: Coroutine[None, None, None]
    ) -> None:
        try:
            await installation
        except WriteRefusedError as error:
            cause = Cause.EXHAUSTED if error.full else Cause.SWITCH_REFUSED
            self.jobs.fail(job, cause, f"the switch refuses the job: {error}")
        except BREAKS:
            pass  # the switch's link knows, and reports it
        except SwitchError as error:
            self.jobs.fail(job, Cause.SWITCH_REFUSED, str(error))
        except Exception as error:  # a fault of ours: nobody waits for the job
            self.jobs.fail(job, Cause.SWITCH_REFUSED, f"installing it failed: {error!r}")
            raise
        else:
            self.jobs.on_configured(job)

    def look(self, job: Job) -> None:
        """Compare a job's entries with those on its switches."""
        self._spawn(self._look(job))

    async def _look(self, job: Job) -> None:
        missing = await self._switches.missing(job.incarnation, list(job.shares))
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        self.jobs.on_looked(job, "; ".join(missing[:3]) + more)

    def on_settled(self, job: Job) -> None:
        """Wake the calls that wait for the job."""
        job.settled.set()

    def on_changed(self, *jobs: Job) -> None:
        """Store the change, and wake whatever waits for one once the present step is complete."""
        for job in jobs:
            job.changed()
        self._table_writer.on_changed()
        if not self._advancing:
            self._advancing = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._advancing = False
        self._reforming.advance()
        for job in self.jobs.all:
            if job.settlement is not None:
                job.settlement.advance(each.rank for each in job.active)

    def withdraw(self, job: Job) -> None:
        """Remove what has been installed of a job so far."""
        self._stop_installing(job)
        self._switches.withdraw(job.incarnation, job.shares)

    def remove(self, job: Job) -> None:
        """Remove a job from its switches."""
        self._stop_installing(job)
        removal = self._switches.remove(job.incarnation, list(job.shares))
        self._spawn(self._finish_removing(job, removal), name="removal")

    def _stop_installing(self, job: Job) -> None:
        """Write nothing more of it; what was begun is done before what is asked for now."""
        if job.installing is not None:
            job.installing.cancel()
            job.installing = None

    async def _finish_removing(
        self, job: Job, removal: Coroutine[None, None, dict[int, RankCounts]]
    ) -> None:
        job.final_counts = await removal
        self.jobs.release(job)

    # -- What the service asks for -----------------------------------------------------

    async def ready(self, job: Job, member: JobMember, timeout: float) -> None:
        """Wait until the job runs, for at most `timeout` seconds.

        Raises NotReadyInTimeError, and JobRefusedError if it will never run. If it does not run, or
        the caller is cancelled, the rank leaves the job.
        """
        _check_timeout(timeout)
        why = "lost its connection to the controller while it waited"
        self.jobs.begin_waiting(member)
        try:
            await asyncio.wait_for(job.settled.wait(), min(timeout, LONGEST_WAIT))
        except asyncio.TimeoutError:
            why = f"gave up after {timeout:g} s"
            missing = self.jobs.why_closed_for(job) or job.missing()
            raise NotReadyInTimeError(
                f"job {job.name!r} is not ready after {timeout:g} s: {missing}", job.awaited()
            ) from None
        finally:
            self.jobs.end_waiting(member)
            if not member.waiting:
                self.jobs.give_up(job, member, why)
        if job.state is not JobState.RUNNING:
            raise JobRefusedError(
                job.cause or Cause.WRONG_STATE, f"job {job.name!r} will not run: {job.reason}"
            )

    async def reform(
        self,
        job: Job,
        member: JobMember,
        world_size: int,
        completed: int,
        ring_address: str,
        intact: bool,
        timeout: float,
    ) -> ReformedPlace:
        """Wait until the ranks of a failed job have a new job, for at most `timeout` seconds.

        Raises NotReadyInTimeError naming the ranks that have not asked, and JobRefusedError.
        """
        _check_timeout(timeout)
        reformation = self._reforming.ask(
            job, member, world_size, completed, ring_address, intact=intact
        )
        self.on_changed()
        try:
            await asyncio.wait_for(reformation.settled.wait(), min(timeout, LONGEST_WAIT))
            return self._reforming.place(reformation, member)
        except asyncio.TimeoutError:
            raise NotReadyInTimeError(
                f"job {job.name!r} is not formed again after {timeout:g} s: "
                f"{self._reforming.waits_for(reformation)}",
                [each.rank for each in reformation.awaited()],
            ) from None
        finally:
            self._reforming.withdraw(reformation, member)

    async def compare(
        self, job: Job, member: JobMember, calls: Iterable[tuple[int, Called]]
    ) -> Comparison:
        """Return what the job's ranks called, when all have reported or after a short time."""
        if job.comparison is None:
            job.comparison = Comparison(self._loop.time() + comparing.WAIT)
        comparison = job.comparison
        comparison.add(member.rank, calls)
        if comparison.complete(each.rank for each in job.active):
            comparison.all_reported.set()
        left = max(comparison.ends - self._loop.time(), 0.0)
        with (
            comparison.asked_by(member.rank, str(member)),
            contextlib.suppress(asyncio.TimeoutError),
        ):
            await asyncio.wait_for(comparison.all_reported.wait(), left)
        return comparison

    async def settle(
        self, job: Job, member: JobMember, number: int, said: bytes, timeout: float
    ) -> dict[int, bytes]:
        """Return what the remaining ranks of a job say in a step, within `timeout` seconds.

        Raises NotReadyInTimeError naming the ranks that have said nothing, and JobRefusedError.
        """
        _check_timeout(timeout)
        if not member.active:
            raise JobRefusedError(Cause.OUT, f"{member} is out of job {job.name!r}")
        job.settlement = job.settlement or Settlement()
        step = job.settlement.say(member.rank, number, said)
        job.settlement.advance(each.rank for each in job.active)
        try:
            await asyncio.wait_for(step.published.wait(), min(timeout, LONGEST_WAIT))
        except asyncio.TimeoutError:
            awaited = job.settlement.awaited(each.rank for each in job.active)
            raise NotReadyInTimeError(
                f"the ranks that remain of job {job.name!r} have not settled what is over after "
                f"{timeout:g} s: {ranks_text(awaited)} said nothing",
                awaited,
            ) from None
        return step.said

    def pass_settling(self, job: Job, member: JobMember) -> None:
        """Let the others settle without a rank."""
        job.settlement = job.settlement or Settlement()
        job.settlement.pass_on(member.rank)
        job.settlement.advance(each.rank for each in job.active)

    async def statistics(self, job: Job) -> dict[int, RankCounts]:
        """Return the counters of each rank. For a job that is over, they are those at its end."""
        if job.final_counts is None:
            counts = await self._switches.statistics(job.incarnation, job.shares)
            if counts:
                return counts
        return job.final_counts or {}

    async def outcomes(self, switch: str) -> dict[FrameOutcome, CounterValue]:
        """Return how many frames of a switch had each outcome."""
        return await self._switches.call(switch, Fabric.outcomes)

    async def counter(self, switch: str, name: str) -> dict[str, CounterValue]:
        """Return a counter of the program."""
        return await self._switches.call(switch, Fabric.counter, name)

    async def slots(self, switch: str, job: Job) -> list[SwitchSlotState]:
        """Return what each of a job's slots is doing at a switch."""
        slots = job.shares[switch].slots
        return await self._switches.call(switch, Fabric.slots, job.incarnation, slots)

    async def tables(self, switch: str) -> list[str]:
        """Return the names of a switch's tables."""
        return await self._switches.call(switch, Fabric.tables)

    async def table(self, switch: str, name: str) -> list[TableRow]:
        """Return a table's entries."""
        return await self._switches.call(switch, Fabric.table, name)

    def link(self, switch: str) -> SessionStatus:
        """The state of the session with a switch."""
        return self._switches.links[switch].status

    @property
    def program(self) -> str:
        """Name and hash of the P4 program, which is the same on all switches."""
        fabric = next(iter(self._switches.fabrics.values()))
        return f"p4reduce {fabric.program.digest[:12]}"

    # -- Plumbing ----------------------------------------------------------------------

    def _spawn(
        self, work: Coroutine[None, None, None], name: str | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        watch_task(task)
        return task


def _encoded(job: Job) -> str:
    if job.encoded is None:
        job.encoded = encode_job(job)
    return job.encoded


def _check_timeout(timeout: float) -> None:
    if not 0 < timeout < math.inf:
        raise JobRefusedError(Cause.INVALID, f"timeout {timeout} is not a number of seconds")


def _attachment(switch: str, port: int, hello: Hello) -> Attachment:
    return Attachment(port, parse_mac(hello.mac), parse_ip(hello.ip), hello.udp_port, switch)
