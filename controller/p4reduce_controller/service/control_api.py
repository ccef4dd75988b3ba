# SPDX-License-Identifier: Apache-2.0
"""The control API (control.proto) on top of `Controller`."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ANSWERED, answered
from p4reduce.control.control_pb2_grpc import ControlServicer

from p4reduce_controller.controller import Controller, NotReadyInTimeError
from p4reduce_controller.events import ControllerEvent, TooManyError, TooSlowError
from p4reduce_controller.fabric.p4client import (
    NoSwitchAnswerError,
    NotPrimaryError,
    RegistersHiddenError,
    SwitchError,
)
from p4reduce_controller.fabric.schema import SchemaError, TableRow
from p4reduce_controller.jobs import presence, tokens
from p4reduce_controller.jobs.comparing import Called
from p4reduce_controller.jobs.job import SLOTS, Job, JobMember
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.request_checks import check_lanes
from p4reduce_controller.service import limits
from p4reduce_controller.values.counts import RankCounts
from p4reduce_controller.values.mac_ip import format_ip, format_mac

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")
_Context = grpc.aio.ServicerContext[Any, Any]

_CODES = {
    Cause.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Cause.TAKEN: grpc.StatusCode.ALREADY_EXISTS,
    Cause.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cause.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Cause.WRONG_NONCE: grpc.StatusCode.PERMISSION_DENIED,
    Cause.WRONG_TOKEN: grpc.StatusCode.PERMISSION_DENIED,
    Cause.WRONG_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Cause.OUT: grpc.StatusCode.PERMISSION_DENIED,
    Cause.SWITCH_REFUSED: grpc.StatusCode.ABORTED,
    Cause.SWITCH_LOST: grpc.StatusCode.UNAVAILABLE,
    Cause.RANK_LOST: grpc.StatusCode.ABORTED,
    Cause.DELETED: grpc.StatusCode.ABORTED,
    Cause.SHUTDOWN: grpc.StatusCode.UNAVAILABLE,
    Cause.NO_INCARNATION: grpc.StatusCode.INTERNAL,
    Cause.NOT_KEPT: grpc.StatusCode.INTERNAL,
}

_CAUSES = {
    Cause.RANK_LOST: pb.CAUSE_RANK_LOST,
    Cause.SWITCH_LOST: pb.CAUSE_SWITCH_LOST,
    Cause.DELETED: pb.CAUSE_DELETED,
    Cause.SHUTDOWN: pb.CAUSE_SHUTDOWN,
    Cause.SWITCH_REFUSED: pb.CAUSE_REFUSED,
    Cause.EXHAUSTED: pb.CAUSE_REFUSED,
}


def status_of(error: Exception) -> grpc.StatusCode | None:
    """Return the gRPC status for an error; None if the error is a bug of the controller."""
    if isinstance(error, JobRefusedError):
        return _CODES[error.cause]
    if isinstance(error, NotReadyInTimeError):
        return grpc.StatusCode.DEADLINE_EXCEEDED
    if isinstance(error, SchemaError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, TooSlowError | TooManyError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, NoSwitchAnswerError | NotPrimaryError):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, RegistersHiddenError):
        return grpc.StatusCode.UNIMPLEMENTED
    if isinstance(error, SwitchError):
        return grpc.StatusCode.INTERNAL
    return None


def _answers(
    method: Callable[[Service, _Request, _Context], Awaitable[_Reply]],
) -> Callable[[Service, _Request, _Context], Awaitable[_Reply]]:
    """Turn the errors that callers are to see into gRPC statuses."""

    @functools.wraps(method)
    async def answer(self: Service, request: _Request, context: _Context) -> _Reply:
        try:
            return await method(self, request, context)
        except Exception as error:
            code = status_of(error)
            if code is None:
                raise
            missing = error.missing if isinstance(error, NotReadyInTimeError) else ()
            await context.abort(code, str(error), answered(missing))

    return answer


class Service(ControlServicer):
    """Answers workers and operators."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._jobs = controller.jobs
        self._peers = limits.PeerLimits()
        self._levels_of: weakref.WeakKeyDictionary[Job, dict[str, pb.Level]] = (
            weakref.WeakKeyDictionary()
        )

    # -- For workers -------------------------------------------------------------------

    @_answers
    async def Join(self, request: pb.JoinRequest, context: _Context) -> pb.JoinReply:  # noqa: N802
        check_lanes(request.rank, request.lanes)
        there = self._jobs.living(request.job)
        token = None
        if there is not None:
            tokens.check_join(there, request.token)
        else:
            token = tokens.hash_given(request.token)
        peer = limits.peer_host(context.peer())
        self._peers.check(peer, new_job=there is None)
        job, member = self._jobs.join(
            request.job,
            request.rank,
            request.world_size,
            request.slots,
            request.host,
            request.pid,
            request.ring_address,
            token,
            own_address=request.own_address,
            local=presence.is_local(request.processes),
            urgent_slots=tuple(request.urgent_slots),
            switch=request.switch,
        )
        self._peers.joined(peer, job, member)
        try:
            await self._controller.keep()
        except JobRefusedError as error:
            self._jobs.give_up(job, member, f"could not be notified: {error}")
            raise
        except asyncio.CancelledError:  # without an answer it cannot prove that the place is its
            self._jobs.give_up(job, member, "did not wait for the answer to its join")
            raise
        return self._joined(job, member)

    def _joined(self, job: Job, member: JobMember) -> pb.JoinReply:
        topology = self._jobs.topology
        members = topology.trees[job.tree]
        name, (switch_ip, switch_mac) = member.switch, topology.meeting
        if len(members) == 1:
            [name] = members
            switch_ip, switch_mac = topology.switches[name].ip, topology.switches[name].mac
        return pb.JoinReply(
            incarnation=job.incarnation,
            nonce=member.nonce,
            switch=name,
            switch_mac=format_mac(switch_mac),
            switch_ip=format_ip(switch_ip),
            suggested_mac=format_mac(member.mac),
            suggested_ip=format_ip(self._jobs.holdings.suggested_ip(member)),
            cores=topology.cores(name),
        )

    @_answers
    async def AwaitReady(  # noqa: N802
        self, request: pb.AwaitReadyRequest, context: _Context
    ) -> pb.Ready:
        job, member = self._jobs.member(request.incarnation, request.rank, request.nonce)
        limits.check_waits(member)
        await self._controller.ready(job, member, request.timeout)
        await self._controller.keep()
        assert member.attachment is not None  # or the job would not run
        at = self._jobs.topology.switches[member.attachment.switch]
        return pb.Ready(
            world_size=job.world_size,
            slot_count=job.slot_count,
            switch=at.name,
            switch_mac=format_mac(at.mac),
            switch_ip=format_ip(at.ip),
            levels=self._levels(job, at.name),
            urgent_slots=job.urgent_slots,
            lease=self._jobs.lease,
            secret=job.secret,
            ring_addresses=[job.members[rank].ring_address for rank in range(job.world_size)],
        )

    def _levels(self, job: Job, switch: str) -> list[pb.Level]:
        """Say who is behind the children of a switch, and of those above it."""
        if job not in self._levels_of:  # the same for all ranks of a switch, which may be many
            self._levels_of[job] = {
                name: pb.Level(
                    switch=name,
                    children=[pb.Child(switch=each.switch, ranks=each.ranks) for each in children],
                )
                for name, children in plan(job, self._jobs.topology).items()
            }
        levels = self._levels_of[job]
        return [levels[name] for name in self._jobs.topology.path_up(switch) if name in levels]

    @_answers
    async def Heartbeat(  # noqa: N802
        self, request: pb.HeartbeatRequest, context: _Context
    ) -> pb.HeartbeatReply:
        job = self._jobs.heartbeat(
            request.incarnation,
            request.rank,
            request.nonce,
            completed=request.completed,
            unanswered=request.unanswered,
            heard=request.heard,
        )
        self._keep_statistics(job, request)
        await self._controller.keep_if_possible()
        left, lost = job.gone
        return pb.HeartbeatReply(
            state=_state(job),
            left=left,
            lost=lost,
            reason=job.reason,
            cause=_CAUSES[job.cause] if job.cause else pb.CAUSE_UNSPECIFIED,
            completed_by_all=job.completed_by_all,
        )

    async def Attend(  # noqa: N802
        self, request: pb.AttendRequest, context: _Context
    ) -> AsyncIterator[pb.Attending]:
        try:
            job, member = self._jobs.member(request.incarnation, request.rank, request.nonce)
            limits.check_presence(member)
        except JobRefusedError as error:
            await context.abort(_CODES[error.cause], str(error), ANSWERED)
        self._jobs.begin_presence(member)
        try:
            yield pb.Attending()
            await self._controller.stopping.wait()
        finally:
            if not self._controller.stopping.is_set():
                self._jobs.end_presence(job, member)

    @_answers
    async def Leave(self, request: pb.LeaveRequest, context: _Context) -> pb.LeaveReply:  # noqa: N802
        job, _ = self._jobs.member(request.incarnation, request.rank, request.nonce)
        self._keep_statistics(job, request)
        self._jobs.leave(request.incarnation, request.rank, request.nonce)
        await self._controller.keep_if_possible()
        return pb.LeaveReply()

    def _keep_statistics(self, job: Job, request: pb.HeartbeatRequest | pb.LeaveRequest) -> None:
        if request.HasField("statistics"):
            job.members[request.rank].statistics = request.statistics

    @_answers
    async def Reform(self, request: pb.ReformRequest, context: _Context) -> pb.ReformReply:  # noqa: N802
        job, member = self._jobs.member(request.incarnation, request.rank, request.nonce)
        limits.check_waits(member)
        place = await self._controller.reform(
            job,
            member,
            request.world_size,
            request.completed,
            request.ring_address,
            request.intact,
            request.timeout,
        )
        await self._controller.keep()
        return pb.ReformReply(
            joined=self._joined(place.job, place.member),
            rank=place.member.rank,
            world_size=place.job.world_size,
            resume_from=place.resume_from,
        )

    @_answers
    async def Compare(self, request: pb.CompareRequest, context: _Context) -> pb.CompareReply:  # noqa: N802
        job, member = self._jobs.member(request.incarnation, request.rank, request.nonce)
        calls = [(one.sequence, Called.of(one.text, one.pieces)) for one in request.calls]
        comparison = await self._controller.compare(job, member, calls)
        return pb.CompareReply(
            callings=[
                pb.Calling(
                    called=pb.Called(sequence=place, text=called.text, pieces=called.pieces),
                    ranks=ranks,
                )
                for place, called, ranks in comparison.differing_calls()
            ],
            silent=comparison.silent(job.members),
        )

    @_answers
    async def Settle(self, request: pb.SettleRequest, context: _Context) -> pb.SettleReply:  # noqa: N802
        job, member = self._jobs.member(request.incarnation, request.rank, request.nonce)
        if request.passes:
            self._controller.pass_settling(job, member)
            return pb.SettleReply()
        said = await self._controller.settle(
            job, member, request.step, request.said, request.timeout
        )
        return pb.SettleReply(
            said=[pb.Said(rank=rank, said=text) for rank, text in sorted(said.items())]
        )

    # -- For operators: jobs -----------------------------------------------------------

    @_answers
    async def CreateJob(self, request: pb.CreateJobRequest, context: _Context) -> pb.Job:  # noqa: N802
        token = tokens.hash_given(request.token)
        job = self._jobs.create(
            request.name, request.world_size, request.slots, token, switch=request.switch
        )
        await self._controller.keep()
        return _job(job)

    @_answers
    async def ListJobs(  # noqa: N802
        self, request: pb.ListJobsRequest, context: _Context
    ) -> pb.ListJobsReply:
        return pb.ListJobsReply(jobs=[_job(job) for job in self._jobs.all])

    @_answers
    async def DeleteJob(self, request: pb.DeleteJobRequest, context: _Context) -> pb.Job:  # noqa: N802
        tokens.check_delete(
            self._jobs.named(request.name), request.token, self._controller.operator_token
        )
        job = self._jobs.delete(request.name)
        await self._controller.keep_if_possible()
        return _job(job)

    @_answers
    async def GetStatistics(  # noqa: N802
        self, request: pb.GetStatisticsRequest, context: _Context
    ) -> pb.Statistics:
        job = self._jobs.named(request.job)
        counts = await self._controller.statistics(job)
        own = {
            rank: member.statistics
            for rank, member in job.members.items()
            if member.statistics is not None
        }
        ranks = sorted(counts.keys() | own.keys())
        return pb.Statistics(
            job=_job(job), ranks=[_rank(rank, counts.get(rank), own.get(rank)) for rank in ranks]
        )

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: _Context
    ) -> AsyncIterator[pb.Event]:
        try:
            with self._controller.events.watch(request.job, request.recent) as events:
                async for event in events:
                    yield _event(event)
        except (TooSlowError, TooManyError) as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), ANSWERED)

    # -- For operators: switches -------------------------------------------------------

    def _named(self, switch: str) -> str:
        """Return the name of the switch that is meant; empty where there is one only."""
        topology = self._jobs.topology
        if not switch and len(topology.switches) == 1:
            return next(iter(topology.switches))
        if not switch:
            raise JobRefusedError(
                Cause.INVALID, f"there are several switches, name one: {topology.names_text}"
            )
        if switch not in topology.switches:
            raise JobRefusedError(
                Cause.UNKNOWN, f"there is no switch {switch!r}, but: {topology.names_text}"
            )
        return switch

    @_answers
    async def ListSwitches(  # noqa: N802
        self, request: pb.ListSwitchesRequest, context: _Context
    ) -> pb.ListSwitchesReply:
        names = self._jobs.topology.switches
        return pb.ListSwitchesReply(switches=[self._switch(name) for name in names])

    @_answers
    async def GetSwitch(self, request: pb.GetSwitchRequest, context: _Context) -> pb.Switch:  # noqa: N802
        return self._switch(self._named(request.switch))

    def _switch(self, name: str) -> pb.Switch:
        status = self._controller.link(name)
        settings = self._controller.settings
        at = settings.topology.switches[name]
        return pb.Switch(
            name=name,
            uplink=self._uplink(name),
            address=settings.servers[name].address,
            device_id=settings.servers[name].device_id,
            election_id=str(status.election_id),
            primary=status.primary,
            program=self._controller.program,
            slots=SLOTS,
            slots_free=self._jobs.holdings.slots_free(name),
            mac=format_mac(at.mac),
            ip=format_ip(at.ip),
            ports=at.ports,
            connected_since=status.connected_since,
            connected=not status.lost,
            reason=status.lost,
            hellos_refused=self._jobs.hellos_refused[name],
            lease=settings.lease,
        )

    def _uplink(self, name: str) -> pb.Uplink | None:
        uplink = self._jobs.topology.switches[name].uplink
        if uplink is None:
            return None
        reason = self._controller.probes.reason(name)
        return pb.Uplink(
            port=uplink.port,
            parent=uplink.parent,
            parent_port=uplink.parent_port,
            works=not reason,
            reason=reason,
        )

    @_answers
    async def GetCounters(  # noqa: N802
        self, request: pb.GetCountersRequest, context: _Context
    ) -> pb.Counters:
        switch = self._named(request.switch)
        if request.name:
            found = await self._controller.counter(switch, request.name)
        else:
            outcomes = await self._controller.outcomes(switch)
            found = {outcome.label: counts for outcome, counts in outcomes.items()}
        return pb.Counters(
            counts=[
                pb.Count(name=name, frames=counts.frames, bytes=counts.bytes)
                for name, counts in found.items()
            ]
        )

    @_answers
    async def GetTable(self, request: pb.GetTableRequest, context: _Context) -> pb.Table:  # noqa: N802
        switch = self._named(request.switch)
        names = await self._controller.tables(switch)
        if not request.name:
            return pb.Table(names=names)
        rows = await self._controller.table(switch, request.name)
        return pb.Table(names=names, entries=[_table_entry(row) for row in rows])

    @_answers
    async def GetSlots(self, request: pb.GetSlotsRequest, context: _Context) -> pb.Slots:  # noqa: N802
        switch = self._named(request.switch)
        jobs = [self._jobs.named(request.job)] if request.job else self._jobs.all
        return pb.Slots(
            jobs=[
                await self._slots(switch, job)
                for job in jobs
                if job.state is JobState.RUNNING and switch in job.shares
            ]
        )

    async def _slots(self, switch: str, job: Job) -> pb.JobSlots:
        children = plan(job, self._jobs.topology)[switch]
        message = pb.JobSlots(job=job.name, incarnation=job.incarnation, children=len(children))
        for state in await self._controller.slots(switch, job):
            slot = message.slots.add(slot=state.slot, activity=pb.FREE)
            if state.job:
                missing = state.missing(len(children))
                slot.activity = pb.COLLECTING if missing else pb.COMPLETE
                slot.round, slot.block = state.round, state.block
                slot.heard = len(children) - len(missing)
                slot.missing_ranks.extend(
                    rank for number in missing for rank in children[number].ranks
                )
        return message


# -- Messages --------------------------------------------------------------------------


def _state(job: Job) -> pb.JobState.ValueType:
    return pb.JobState.Value(job.state.name)


def _job(job: Job) -> pb.Job:
    return pb.Job(
        name=job.name,
        incarnation=job.incarnation,
        state=_state(job),
        world_size=job.world_size,
        slot_base=job.root.slots.start,
        slot_count=job.slot_count,
        switches=list(job.shares),
        members=[_member(member) for _, member in sorted(job.members.items())],
        created=job.created,
        has_token=job.token is not None,
        reason=job.reason,
    )


def _member(member: JobMember) -> pb.Member:
    at = member.attachment
    message = pb.Member(
        rank=member.rank, state=member.state.value, host=member.host, pid=member.pid
    )
    if at is not None:
        message.port, message.udp_port, message.switch = at.port, at.udp_port, at.switch
        message.mac, message.ip = format_mac(at.mac), format_ip(at.ip)
    return message


def _rank(
    rank: int, counts: RankCounts | None, own: pb.WorkerStatistics | None
) -> pb.RankStatistics:
    message = pb.RankStatistics(rank=rank, worker=own)
    if counts is not None:
        message.frames_up, message.bytes_up = counts.up.frames, counts.up.bytes
        message.payload_up = counts.payload_up
        message.empty_up = counts.up.frames - counts.payload_up
        message.frames_down, message.bytes_down = counts.down.frames, counts.down.bytes
    return message


def _event(event: ControllerEvent) -> pb.Event:
    return pb.Event(
        time=event.time,
        job=event.job,
        incarnation=event.incarnation,
        kind=event.kind,
        text=event.text,
    )


# How people write the values of a table; all others are plain numbers.
_FORMATS: dict[str, Callable[[int], str]] = {
    "mac": format_mac,
    "dst_mac": format_mac,
    "ip": format_ip,
    "src_ip": format_ip,
    "worker_bit": hex,
    "all_workers": hex,
}


def _table_entry(row: TableRow) -> pb.TableEntry:
    counts = row.counts
    return pb.TableEntry(
        match={name: _FORMATS.get(name, str)(value) for name, value in row.match.items()},
        action=row.action,
        params={name: _FORMATS.get(name, str)(value) for name, value in row.params.items()},
        priority=row.priority,
        counted=counts is not None,
        frames=counts.frames if counts else 0,
        bytes=counts.bytes if counts else 0,
    )
