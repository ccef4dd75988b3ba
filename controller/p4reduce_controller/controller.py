# SPDX-License-Identifier: Apache-2.0
"""The controller at work: jobs on one side, a switch on the other, an event loop between them.

All state belongs to the event loop. P4Runtime calls block, so they are made on one thread of their
own, in the order in which the jobs asked for them; another thread waits for the switch's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from p4reduce.control import control_pb2 as pb
from p4reduce.control.tls import TlsFiles
from p4reduce.wire import Hello, parse_hello

from p4reduce_controller.addresses import parse_ip, parse_mac
from p4reduce_controller.events import Event, EventLog, RateLimit
from p4reduce_controller.fabric import Fabric, RankCounts
from p4reduce_controller.incarnation import Incarnations
from p4reduce_controller.job import (
    DEFAULT_SLOTS,
    Attachment,
    Cause,
    Job,
    JobState,
    Member,
    RefusedError,
)
from p4reduce_controller.jobs import Jobs
from p4reduce_controller.layout import HelloLimit, lay_out
from p4reduce_controller.outcome import Outcome
from p4reduce_controller.p4client import (
    PacketIn,
    StreamEnded,
    SwitchClient,
    SwitchError,
    SwitchUnreachableError,
    WriteRefusedError,
)
from p4reduce_controller.program import Program
from p4reduce_controller.reforming import Place, Reformation, Reforming
from p4reduce_controller.schema import Counts, Row
from p4reduce_controller.tokens import operator_token

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

# HELLOs between the two threads; more wait in the stream's queue, and are dropped there.
HELLOS_IN_FLIGHT = 256
HELLOS_REFUSED_TOLD = 10  # a second, and as many at once; all are counted
LONGEST_WAIT = 86400.0  # seconds


class NotReadyInTimeError(Exception):
    """Not all ranks were there in time; the message names those that were not."""


@dataclass(frozen=True)
class Settings:
    """What the daemon is told."""

    switch: str  # gRPC address of its P4Runtime server
    device_id: int
    election_id: int
    listen: str
    ports: tuple[int, ...]
    switch_ip: str
    switch_mac: str
    lease: float  # seconds
    state_directory: Path
    connect_timeout: float = 10.0
    default_slots: int = DEFAULT_SLOTS  # of a job that does not say how many it wants
    tls: TlsFiles | None = None  # of the control API, where that goes by TCP
    switch_tls: TlsFiles | None = None  # of the P4Runtime session
    hello_limit: HelloLimit = field(default_factory=HelloLimit)


@dataclass(frozen=True)
class SwitchStatus:
    """How it is about the switch."""

    address: str
    device_id: int
    election_id: int
    program: str
    slots_free: int
    hellos_refused: int
    connected_since: float
    lost: str  # why it is no longer connected; empty while it is


class Controller:
    """Made and used in the event loop, with a switch that was prepared."""

    def __init__(
        self, settings: Settings, client: SwitchClient, fabric: Fabric, program: Program
    ) -> None:
        self.settings = settings
        self.events = EventLog()
        self._client = client
        self._fabric = fabric
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._switch_thread = ThreadPoolExecutor(1, thread_name_prefix="p4runtime")
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled: weakref.WeakKeyDictionary[Job, asyncio.Event] = weakref.WeakKeyDictionary()
        self._final_counts: weakref.WeakKeyDictionary[Job, dict[int, RankCounts]] = (
            weakref.WeakKeyDictionary()
        )
        self._reformed: weakref.WeakKeyDictionary[Reformation, asyncio.Event] = (
            weakref.WeakKeyDictionary()
        )
        # What each rank last said of itself.
        self.worker_statistics: weakref.WeakKeyDictionary[Member, pb.WorkerStatistics] = (
            weakref.WeakKeyDictionary()
        )
        self._told = RateLimit(HELLOS_REFUSED_TOLD, HELLOS_REFUSED_TOLD, time.monotonic)
        self._since = time.time()
        self._lost = ""
        self._stopping = threading.Event()
        self._room = threading.BoundedSemaphore(HELLOS_IN_FLIGHT)
        self._receiver = threading.Thread(target=self._receive, name="packet-in", daemon=True)
        self.operator_token = operator_token(settings.state_directory)
        self.jobs = Jobs(
            self,
            lease=settings.lease,
            ports=settings.ports,
            switch_mac=parse_mac(settings.switch_mac),
            switch_ip=parse_ip(settings.switch_ip),
            next_incarnation=Incarnations(settings.state_directory).next,
            clock=time.monotonic,
            wall_clock=time.time,
            default_slots=settings.default_slots,
        )
        self._reforming = Reforming(self.jobs, self._reformation_settled)
        self._advancing = False

    # -- Life --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen to the switch and to watch the leases."""
        self._receiver.start()
        self._spawn(self._watch_leases())

    async def stop(self, timeout: float = 1.2) -> None:
        """End all jobs and take them off the switch, within `timeout` seconds."""
        if not self._lost:
            self.jobs.close(Cause.SHUTDOWN, "the controller is shutting down")
        self._stopping.set()
        removals = [task for task in self._tasks if task.get_name() == "removal"]
        if removals:
            await asyncio.wait(removals, timeout=timeout)
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._client.close)
        self._switch_thread.shutdown(wait=False)

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lease / 10)
            self.jobs.expire()

    # -- The switch --------------------------------------------------------------------

    async def on_switch(
        self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Call `function` on the P4Runtime thread. Raises what it raises."""
        return await self._submit(functools.partial(function, *args, **kwargs))

    def _submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._lost:
            raise SwitchUnreachableError(self._lost)
        return self._loop.run_in_executor(self._switch_thread, function)

    def _receive(self) -> None:
        """Hand the switch's messages to the event loop, on a thread of its own."""
        while not self._stopping.is_set():
            message = self._client.receive(timeout=0.5)
            if isinstance(message, PacketIn):
                while not self._room.acquire(timeout=0.5):
                    if self._stopping.is_set():
                        return
                self._to_loop(functools.partial(self._packet_in, message))
            elif isinstance(message, StreamEnded):
                if not self._stopping.is_set():
                    self._to_loop(functools.partial(self._switch_lost, message.reason))
                return

    def _packet_in(self, packet: PacketIn) -> None:
        self._room.release()
        try:
            hello = parse_hello(packet.frame)
        except ValueError as error:
            self.jobs.refuse_hello(None, f"from port {packet.port}: {error}")
            return
        self.jobs.hello(hello.job, hello.rank, hello.nonce, _attachment(packet.port, hello))

    def _switch_lost(self, reason: str) -> None:
        self._lost = reason
        self.event("switch-lost", None, reason)
        self.jobs.close(Cause.SWITCH_LOST, f"the switch was lost: {reason}")

    # -- What the jobs ask for (jobs.Listener) -----------------------------------------

    def event(self, kind: str, job: Job | None, text: str) -> None:
        """Publish and log."""
        if kind == "hello-refused":
            held_back = self._told.passes()
            if held_back is None:
                return
            if held_back:
                text += f" (and {held_back} more before)"
        name, incarnation = (job.name, job.incarnation) if job else ("", 0)
        self.events.publish(Event(time.time(), name, incarnation, kind, text))
        log.info("%s %s", kind, f"{name!r} {incarnation}: {text}" if job else text)

    def configure(self, job: Job) -> None:
        """Put the job on the switch."""
        layout = lay_out(job)
        installation = self._submit(
            functools.partial(self._fabric.install, job.incarnation, layout)
        )
        self._spawn(self._finish_configuring(job, installation))

    async def _finish_configuring(self, job: Job, installation: asyncio.Future[None]) -> None:
        try:
            await installation
        except WriteRefusedError as error:
            cause = Cause.EXHAUSTED if error.full else Cause.SWITCH_REFUSED
            self.jobs.fail(job, cause, f"the switch refuses the job: {error}")
        except SwitchError as error:
            self.jobs.fail(job, Cause.SWITCH_LOST, str(error))
        else:
            self.jobs.configured(job)

    def settled(self, job: Job) -> None:
        """Wake those who wait for the job."""
        self._settled_event(job).set()

    def changed(self) -> None:
        """Look at what waits for a change, once the present one is complete."""
        if not self._advancing:
            self._advancing = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._advancing = False
        self._reforming.advance()

    def remove(self, job: Job) -> None:
        """Take the job off the switch."""
        removal = None
        if not self._lost:
            removal = self._submit(functools.partial(self._take_off, job.incarnation))
        self._spawn(self._finish_removing(job, removal), name="removal")

    def _take_off(self, incarnation: int) -> dict[int, RankCounts]:
        """Runs on the P4Runtime thread."""
        counts: dict[int, RankCounts] = {}
        with contextlib.suppress(SwitchError):
            counts = self._fabric.statistics(incarnation)
        self._fabric.remove(incarnation)
        return counts

    async def _finish_removing(
        self, job: Job, removal: asyncio.Future[dict[int, RankCounts]] | None
    ) -> None:
        if removal is not None:
            self._final_counts[job] = await removal
        self.jobs.release(job)

    # -- What the service asks for -----------------------------------------------------

    async def ready(self, job: Job, member: Member, timeout: float) -> None:
        """Wait until the job runs, for at most `timeout` seconds.

        Raises NotReadyInTimeError, and RefusedError if it will never run. Unless it does run, the
        rank is taken off, also if the caller is cancelled.
        """
        _check_timeout(timeout)
        why = "lost its connection to the controller while it waited"
        self.jobs.begin_waiting(member)
        try:
            settled = self._settled_event(job)
            await asyncio.wait_for(settled.wait(), min(timeout, LONGEST_WAIT))
        except asyncio.TimeoutError:
            why = f"gave up after {timeout:g} s"
            raise NotReadyInTimeError(
                f"job {job.name!r} is not ready after {timeout:g} s: {job.missing()}"
            ) from None
        finally:
            self.jobs.end_waiting(member)
            if not member.waiting:
                self.jobs.give_up(job, member, why)
        if job.state is not JobState.RUNNING:
            raise RefusedError(
                job.cause or Cause.WRONG_STATE, f"job {job.name!r} will not run: {job.reason}"
            )

    async def reform(
        self,
        job: Job,
        member: Member,
        world_size: int,
        completed: int,
        ring_address: str,
        intact: bool,
        timeout: float,
    ) -> Place:
        """Wait until a failed job's ranks have a new one, for at most `timeout` seconds.

        Raises NotReadyInTimeError naming those who have not asked, and RefusedError.
        """
        _check_timeout(timeout)
        reformation = self._reforming.ask(
            job, member, world_size, completed, ring_address, intact=intact
        )
        self.changed()
        try:
            if not reformation.settled:
                settled = self._reformed.setdefault(reformation, asyncio.Event())
                await asyncio.wait_for(settled.wait(), min(timeout, LONGEST_WAIT))
            return self._reforming.place(reformation, member)
        except asyncio.TimeoutError:
            raise NotReadyInTimeError(
                f"job {job.name!r} is not formed again after {timeout:g} s: "
                f"{self._reforming.waits_for(reformation)}"
            ) from None
        finally:
            self._reforming.withdraw(reformation, member)

    def _reformation_settled(self, reformation: Reformation) -> None:
        self._reformed[reformation].set()

    def _settled_event(self, job: Job) -> asyncio.Event:
        return self._settled.setdefault(job, asyncio.Event())

    async def statistics(self, job: Job) -> dict[int, RankCounts]:
        """Return what was counted for each rank, of a job that is over as it was at its end."""
        if job not in self._final_counts and not self._lost:
            counts = await self.on_switch(self._fabric.statistics, job.incarnation)
            if counts:
                return counts
        return self._final_counts.get(job, {})

    async def outcomes(self) -> dict[Outcome, Counts]:
        """Return what became of every frame."""
        return await self.on_switch(self._fabric.outcomes)

    async def tables(self) -> list[str]:
        """Return the names of the switch's tables."""
        return await self.on_switch(self._fabric.tables)

    async def table(self, name: str) -> list[Row]:
        """Return a table's entries."""
        return await self.on_switch(self._fabric.table, name)

    def switch_status(self) -> SwitchStatus:
        """Return how it is about the switch."""
        return SwitchStatus(
            address=self._client.address,
            device_id=self._client.device_id,
            election_id=self._client.election_id,
            program=f"p4reduce {self._program.digest[:12]}",
            slots_free=self.jobs.slots_free,
            hellos_refused=self.jobs.hellos_refused,
            connected_since=self._since,
            lost=self._lost,
        )

    # -- Plumbing ----------------------------------------------------------------------

    def _to_loop(self, function: Callable[[], None]) -> None:
        """Call `function` in the event loop, from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody cares any more
            self._loop.call_soon_threadsafe(function)

    def _spawn(self, work: Coroutine[None, None, None], name: str | None = None) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("internal error", exc_info=task.exception())


def _check_timeout(timeout: float) -> None:
    if not 0 < timeout < math.inf:
        raise RefusedError(Cause.INVALID, f"timeout {timeout} is no number of seconds")


def _attachment(port: int, hello: Hello) -> Attachment:
    return Attachment(port, parse_mac(hello.mac), parse_ip(hello.ip), hello.udp_port)
