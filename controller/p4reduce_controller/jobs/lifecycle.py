# SPDX-License-Identifier: Apache-2.0
"""Jobs and their ranks, from the first that joins to the last that leaves.

A job's stages and the transitions between them are in job_states.py; docs/faults.md draws them.

It does not know gRPC or P4Runtime: a `JobListener` acts on its decisions. Not thread-safe: the
daemon calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from p4reduce_controller.jobs import leases, presence, silence
from p4reduce_controller.jobs.attaching import AttachPoint
from p4reduce_controller.jobs.holdings import Holdings
from p4reduce_controller.jobs.job import (
    AUTO_SLOTS,
    DEFAULT_SLOTS,
    MAX_CHILDREN,
    MAX_WORLD_SIZE,
    SLOTS,
    Attachment,
    Job,
    JobMember,
    MemberState,
    count_text,
    ranks_text,
)
from p4reduce_controller.jobs.job_states import JobEvent, JobState, Stage
from p4reduce_controller.jobs.plan import Plan, parts, plan
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.jobs.request_checks import (
    MAX_ADDRESS,
    check_classes,
    check_name,
    check_number,
    classes_text,
    printable,
)
from p4reduce_controller.jobs.roster import Clocks, JobListener, Roster
from p4reduce_controller.topology.switches import ONLY, Topology
from p4reduce_controller.values.token_hash import TokenHash


class Jobs(Roster):
    """All jobs on a controller's switches.

    `clock` returns monotonic seconds for leases, `wall_clock` seconds since 1970 for people, and
    `next_incarnation` an id that was never used. `lease` is in seconds.
    """

    def __init__(
        self,
        listener: JobListener,
        topology: Topology,
        *,
        lease: float,
        next_incarnation: Callable[[], int],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        default_slots: int = DEFAULT_SLOTS,
    ) -> None:
        super().__init__(
            listener,
            Holdings(topology),
            Clocks(clock, wall_clock, next_incarnation),
            lease=lease,
        )
        self.lease = lease
        self.topology = topology
        self.hellos_refused = dict.fromkeys(topology.switches, 0)
        self._listener = listener
        self._default_slots = default_slots
        self._entrance = AttachPoint(topology)
        self._clock = clock
        self._closed: JobRefusedError | None = None  # for good
        self._lost: dict[str, str] = {}  # switches and links, each with what is known of it

    # -- Joining -----------------------------------------------------------------------

    def create(
        self,
        name: str,
        world_size: int,
        slots: int,
        token: TokenHash | None = None,
        *,
        by_operator: bool = True,
        switch: str = "",
    ) -> Job:
        """Make a job. `slots` 0 means the controller's default.

        The job may use the tree that contains `switch`, which may be empty if there is only one
        tree. Raises JobRefusedError.
        """
        check_name(name)
        tree = self._tree(switch, name)
        self._check_open(switch, tree)
        self.check_world_size(world_size, tree)
        if slots:  # 0: the controller's default
            check_number("number of slots", slots, 1, SLOTS)
        self._check_unused(name)
        members = self.topology.trees[tree]
        job = self.make(
            name,
            world_size,
            slots or self._slots_of_new_job(tree),
            tree,
            # In a larger tree, it is known later which of them sum for this job.
            members if len(members) == 1 else (),
            by_operator=by_operator,
        )
        job.token = token
        self._listener.on_changed(job)
        return job

    def _tree(self, switch: str, name: str) -> str:
        """Return the name of the tree that a rank, or an operator, means by a switch's name."""
        switches = self.topology.switches
        if switch:
            if switch not in switches:
                raise JobRefusedError(
                    Cause.INVALID,
                    f"there is no switch {switch!r}, but {self.topology.names_text}",
                )
            return self.topology.tree_of(switch)
        only = self.topology.only_tree
        if not only:
            raise JobRefusedError(
                Cause.INVALID,
                f"job {name!r} must name its switch (switch=), as this controller has "
                f"several that are not linked: {self.topology.names_text}",
            )
        return only

    def _slots_of_new_job(self, tree: str) -> int:
        """Return how many slots a job gets that does not say how many it wants."""
        if self._default_slots != AUTO_SLOTS:
            return self._default_slots
        return self.holdings.auto_slots(self.topology.trees[tree])

    def check_world_size(self, world_size: int, tree: str) -> None:
        """Raise JobRefusedError if neither a tree nor a switch has room for that many ranks."""
        if len(self.topology.trees[tree]) > 1:
            check_number("world size", world_size, 1, MAX_WORLD_SIZE)
        elif world_size > MAX_CHILDREN:
            raise JobRefusedError(
                Cause.INVALID,
                f"world size {world_size} is not within 1 and {MAX_CHILDREN}, as many ranks as "
                f"one switch has room for; a tree of switches has room for {MAX_WORLD_SIZE:,} "
                "(serve --topology)",
            )
        else:
            check_number("world size", world_size, 1, MAX_CHILDREN)

    def _check_unused(self, name: str) -> None:
        job = self.latest(name)
        if job is None:
            return
        if job.alive:
            raise JobRefusedError(Cause.TAKEN, f"there is a job {name!r} already")
        if job.reformable:
            survivors = ranks_text([member.rank for member in job.active])
            raise JobRefusedError(
                Cause.WRONG_STATE,
                f"job {name!r} has failed ({job.reason}), and {survivors} may form it again. "
                "A new job of that name can begin when all have left, or it is deleted",
            )

    def join(
        self,
        name: str,
        rank: int,
        world_size: int,
        slots: int,
        host: str,
        pid: int,
        ring_address: str = "",
        token: TokenHash | None = None,
        *,
        own_address: bool = True,
        local: bool = False,
        urgent_slots: Sequence[int] = (),
        switch: str = "",
    ) -> tuple[Job, JobMember]:
        """Register a rank. If no job of that name is alive, make one with `token`.

        `urgent_slots` are the slots for classes 1, 2 and so on; the first rank decides. `switch` is
        the rank's switch. If it is empty or the top of a tree, the rank's HELLO shows the switch.

        The caller has checked the token for an existing job. Raises JobRefusedError.
        """
        check_name(name)
        tree = self._tree(switch, name)
        if switch == tree and len(self.topology.trees[tree]) > 1:
            switch = ""  # a tree is called as its topmost switch: the rank may be anywhere in it
        self._check_open(switch, tree)
        self.check_world_size(world_size, tree)
        if not 0 <= rank < world_size:
            raise JobRefusedError(
                Cause.INVALID, f"rank {rank} is not below the world size {world_size}"
            )
        [host_number] = self.holdings.host_numbers(1)
        try:
            job = self.living(name)
            there = job.slot_count if job is not None else slots or self._slots_of_new_job(tree)
            check_classes(name, urgent_slots, there)
            if job is None:
                job = self.create(
                    name, world_size, slots, token, by_operator=False, switch=switch or tree
                )
            self._check_fits(job, rank, world_size, slots, urgent_slots, tree)
        except BaseException:
            self.holdings.free_host_numbers([host_number])
            raise
        host = printable(host)  # it ends up in terminals
        member = self.admit(job, rank, host, pid, host_number, printable(ring_address, MAX_ADDRESS))
        member.own_address, member.local, member.switch = own_address, local, switch
        job.urgent_slots = list(urgent_slots)
        self._listener.on_changed(job)
        return job, member

    def _check_fits(
        self,
        job: Job,
        rank: int,
        world_size: int,
        slots: int,
        urgent_slots: Sequence[int],
        tree: str,
    ) -> None:
        if job.tree != tree:
            raise JobRefusedError(
                Cause.INVALID,
                f"job {job.name!r} is on switch {job.tree}, which no links join to that of rank "
                f"{rank}: {tree}",
            )
        if job.world_size != world_size:
            raise JobRefusedError(
                Cause.INVALID,
                f"world size {world_size} does not fit job {job.name!r}, "
                f"which has {job.world_size}",
            )
        if slots not in (0, job.slot_count):
            raise JobRefusedError(
                Cause.INVALID,
                f"{slots} slots do not fit job {job.name!r}, which has {job.slot_count}",
            )
        if job.urgent_slots is not None and job.urgent_slots != list(urgent_slots):
            raise JobRefusedError(
                Cause.INVALID,
                f"{classes_text(urgent_slots)} urgent slots do not fit job {job.name!r}, which has "
                f"{classes_text(job.urgent_slots)}; all ranks must ask for the same",
            )
        taken = job.members.get(rank)
        if taken is not None and taken.active:
            raise JobRefusedError(Cause.TAKEN, f"{taken} is in job {job.name!r} already")
        if job.state is not JobState.FORMING:
            still = ranks_text([member.rank for member in job.active])
            raise JobRefusedError(
                Cause.WRONG_STATE,
                f"job {job.name!r} has been running: {taken} left, but {still} did not yet. "
                "A new job of that name can begin when all have left, or it is deleted",
            )

    # -- Attaching ---------------------------------------------------------------------

    def hello(self, incarnation: int, rank: int, nonce: int, attachment: Attachment) -> None:
        """Bind a rank to where its HELLO came from.

        Anyone can send a HELLO, so a wrong one is an event and never an exception.
        """
        job = self.of(incarnation)
        try:
            job, member = self.member(incarnation, rank, nonce)
        except JobRefusedError as error:
            self.refuse_hello(attachment.switch, job, f"from {attachment}: {error}")
            return
        ip = self.holdings.suggested_ip(member)
        refusal = self._entrance.objection(job, member, attachment, self.all, suggested_ip=ip)
        if refusal:
            member.refusal = refusal
            self.refuse_hello(attachment.switch, job, f"rank {rank}: {refusal}")
            return
        leases.begin(member, self._clock(), self.lease)
        if member.state is not MemberState.JOINED:
            return  # the same again
        member.state, member.attachment, member.refusal = MemberState.ATTACHED, attachment, ""
        self._listener.on_event("rank-attached", job, f"rank {rank} at {attachment}")
        if job.complete:
            self._configure(job)
        self._listener.on_changed(job)

    def refuse_hello(self, switch: str, job: Job | None, text: str) -> None:
        """Count a wrong HELLO, and report it as an event of the switch it came by."""
        self.hellos_refused[switch] += 1
        self._listener.on_event("hello-refused", job, text)

    def _configure(self, job: Job) -> None:
        try:
            planned = plan(job, self.topology)
            self._take_shares(job, planned)
            if parts(job, self.topology) & self._lost.keys():
                return  # `on_part_back` comes here again
            self.holdings.take_multicast(job, {name: len(each) for name, each in planned.items()})
        except JobRefusedError as error:
            self.fail(job, error.cause, str(error))
            return
        job.step(JobEvent.ALL_ATTACHED)
        self._listener.configure(job)

    def _take_shares(self, job: Job, planned: Plan) -> None:
        """Let the job have slots on just the switches that it needs."""
        missing = [name for name in planned if name not in job.shares]
        more = self.holdings.take_slots(missing, job.slot_count, job.name)
        spare = {name: share for name, share in job.shares.items() if name not in planned}
        self.holdings.free_slots(spare)
        have = job.shares | more
        job.shares = {name: have[name] for name in planned}

    def on_configured(self, job: Job) -> None:
        """The switches have all entries of the job, so it runs."""
        if not job.configuring:
            return  # failed meanwhile
        job.step(JobEvent.CONFIGURED)
        for member in job.members.values():
            leases.begin(member, self._clock(), self.lease)
        self._listener.on_event("job-running", job, count_text(job.world_size))
        self._listener.on_settled(job)
        self._listener.on_changed(job)

    # -- Staying -----------------------------------------------------------------------

    def heartbeat(
        self,
        incarnation: int,
        rank: int,
        nonce: int,
        *,
        completed: int = 0,
        unanswered: float = 0.0,
        heard: float = 0.0,
    ) -> Job:
        """Renew a rank's lease and take its report. Raises JobRefusedError.

        `completed` is how many collectives the rank has the result of. The switch has not answered
        it for `unanswered` seconds, and last answered `heard` seconds ago.
        """
        job, member = self.member(incarnation, rank, nonce)
        if not member.active:
            return job
        now = self._clock()
        leases.heard(job, member, now, self.lease)
        member.cut = None
        job.completes(member, completed)
        member.report = silence.report(now, unanswered, heard)
        if job.state is JobState.RUNNING:
            self._on_silence(job, member, now)
        return job

    def _on_silence(self, job: Job, member: JobMember, now: float) -> None:
        """Act on what a rank says of the switch's answers."""
        if reason := silence.cut_off(job, member, now, self.lease):
            self._lose(job, {member: reason})
        elif reason := silence.of_all(job, member, now, self.lease):
            self.fail(job, Cause.SWITCH_LOST, reason)
        elif silence.to_look(job, member, now, self.lease):
            self._listener.look(job)

    def on_looked(self, job: Job, missing: str) -> None:
        """Take the result of a check: whether the switches have all entries of a job."""
        if missing and job.state is JobState.RUNNING:
            self.fail(job, Cause.SWITCH_LOST, f"the switch has lost entries of the job: {missing}")

    def begin_waiting(self, member: JobMember) -> None:
        """A call waits for the job to run. Its connection replaces heartbeats."""
        member.waiting += 1

    def end_waiting(self, member: JobMember) -> None:
        """That call is over, and the lease counts again."""
        member.waiting -= 1
        leases.begin(member, self._clock(), self.lease)

    def begin_presence(self, member: JobMember) -> None:
        """Note a new call that stays open as long as the rank's process runs."""
        presence.begin(member)

    def end_presence(self, job: Job, member: JobMember) -> None:
        """That call was closed by the other end."""
        reason = presence.end(member, self._clock(), self.lease)
        if reason and member.active and job.members.get(member.rank) is member:
            self._lose(job, {member: reason})

    def expire(self) -> bool:
        """Find the ranks whose process has ended, or whose lease ran out.

        Returns whether any rank is left that could be lost later.
        """
        now, anybody = self._clock(), False
        for job in self.all:
            self._tell_of_losses(job)
            if job.over and not job.reformable:
                continue
            gone = {
                member: reason
                for member in job.active
                if (reason := presence.run_out(member, now, self.lease))
            }
            self._lose(job, leases.run_out(job, now, self.lease) | gone)
            anybody = anybody or bool(job.active)
        return anybody

    def _tell_of_losses(self, job: Job) -> None:
        if job.unannounced_losses:
            self._listener.on_event("rank-lost", job, _losses_text(job.unannounced_losses))
            job.unannounced_losses = {}

    def stood_still(self) -> None:
        """The controller stood still, and heartbeats may wait unread: renew all leases."""
        for job in self.all:
            leases.extend(job, self._clock() + self.lease)

    def revive(self, job: Job) -> None:
        """Take back ranks that were declared lost, unless the others have continued without
        them."""
        if not job.deserted or self.latest(job.name) is not job:
            return
        for member in job.members.values():
            if member.state is MemberState.LOST:
                member.state = MemberState.ATTACHED
                leases.begin(member, self._clock(), self.lease)
        job.progress.clear()
        self._listener.on_event("ranks-back", job, f"{ranks_text(job.ranks(MemberState.ATTACHED))}")
        self._listener.on_changed(job)

    def _lose(self, job: Job, reasons: Mapping[JobMember, str]) -> None:
        """Ranks are lost. Those that follow the first ones are reported together, a moment
        later."""
        if not reasons:
            return
        reason = _losses_text(reasons)
        if job.state is JobState.FAILED:
            job.unannounced_losses |= reasons
        else:
            self._listener.on_event("rank-lost", job, reason)
        for member in reasons:
            if job.state is JobState.FORMING:
                self._take_off(job, member, reasons[member], MemberState.LOST)
            else:
                member.state = MemberState.LOST
        if job.state is JobState.FORMING:
            return
        if job.state is JobState.RUNNING:
            self.fail(job, Cause.RANK_LOST, reason)
        self._remove_if_deserted(job)
        self._listener.on_changed(job)

    # -- Leaving -----------------------------------------------------------------------

    def leave(self, incarnation: int, rank: int, nonce: int) -> None:
        """Remove a rank that is done. Raises JobRefusedError; leaving twice is no error."""
        job, member = self.member(incarnation, rank, nonce)
        if not member.active:
            return
        self._listener.on_event("rank-left", job, f"{member}")
        if job.state is JobState.FORMING:
            self._take_off(job, member, f"{member} left while the job was forming")
            return
        member.state = MemberState.LEFT
        if job.state is JobState.RUNNING and not job.active:
            self._end(job, JobEvent.ALL_LEFT, None, "all ranks left")
        self._remove_if_deserted(job)
        self._listener.on_changed(job)

    def give_up(self, job: Job, member: JobMember, reason: str) -> None:
        """Remove a rank that no longer waits for the job to run, and free its place.

        `reason` says what the rank did, like "gave up after 30 s".
        """
        if job.state is JobState.FORMING and job.members.get(member.rank) is member:
            self._listener.on_event("rank-left", job, f"{member} {reason}")
            self._take_off(job, member, f"{member} {reason}")

    def _take_off(
        self, job: Job, member: JobMember, reason: str, state: MemberState = MemberState.LEFT
    ) -> None:
        """Free a place in a job that is still forming."""
        self._listener.on_changed(job)
        is_needed = job.intact and state is MemberState.LOST
        if job.configuring or job.elastic or is_needed:
            # The entries of this rank are being written, so another one cannot take its place.
            # No other rank will join an elastic job, or one that continues where it was. Those that
            # are left can form it again.
            member.state = state
            self.fail(job, Cause.RANK_LOST, reason)
            return
        del job.members[member.rank]
        job.departed[member.rank] = reason
        self.holdings.free_host_numbers([member.host_number])
        if not job.members and not job.by_operator:
            self._end(job, JobEvent.DESERTED, Cause.RANK_LOST, f"nobody is left of it: {reason}")

    def delete(self, name: str, reason: str = "deleted by an operator") -> Job:
        """End a job whatever it is doing. Raises JobRefusedError if it is over already."""
        job = self.named(name)
        if job.over and not job.reformable:
            raise JobRefusedError(
                Cause.UNKNOWN, f"job {name!r} is over already: {job.reason or 'it ended'}"
            )
        self._end(job, JobEvent.DELETED, Cause.DELETED, reason)
        return job

    def fail(self, job: Job, cause: Cause, reason: str) -> None:
        """End a job with an error.

        A job that ran stays on the switch until its ranks have left. One that did not is removed at
        once, because the calls that wait for it end now.
        """
        if job.alive:
            event = JobEvent.SWITCH_LOST if cause is Cause.SWITCH_LOST else JobEvent.FAILED
            self._end(job, event, cause, reason)

    def close(self, reason: str) -> None:
        """End all jobs and accept no more, because the controller stops."""
        self._closed = JobRefusedError(Cause.SHUTDOWN, reason)
        for job in self.all:
            if job.alive or job.reformable:
                self._end(job, JobEvent.DELETED, Cause.SHUTDOWN, reason)

    # -- The coming and going of switches and links ----------------------------------------

    def on_part_lost(self, part: str, reason: str) -> None:
        """A switch is lost with all its registers, or a link, which its text names."""
        self._lost[part] = why = self._why_lost(part, reason)
        hit = []
        for job in self.all:
            if job.state is JobState.FORMING:
                # Its ranks send HELLO until the job runs, so they attach again when the switch is
                # back.
                if self._detach(job, part):
                    hit.append(job)
            elif part in parts(job, self.topology):
                self.fail(job, Cause.SWITCH_LOST, why)
                self._remove_if_stranded(job, JobEvent.SWITCH_LOST)
                hit.append(job)
        self._listener.on_changed(*hit)

    def on_part_still_lost(self, part: str, reason: str) -> None:
        """A lost switch is still missing, for a new reason."""
        self._lost[part] = self._why_lost(part, reason)

    def _why_lost(self, part: str, reason: str) -> str:
        why = f"the switch was lost: {reason}" if part == ONLY else f"{part} was lost: {reason}"
        return f"switch {why}" if part in self.topology.switches and part != ONLY else why

    def on_part_unproven(self, part: str, reason: str) -> None:
        """A link is unproven: running jobs continue, others wait for it."""
        self._lost[part] = f"{part} is not proven: {reason}"

    def _detach(self, job: Job, part: str) -> bool:
        """Undo what a job that forms had by that part. Returns whether it had anything."""
        gone = [
            member
            for member in job.active
            if member.attachment is not None and member.attachment.switch == part
        ]
        for member in gone:
            member.state, member.attachment = MemberState.JOINED, None
        configuring = job.configuring and part in parts(job, self.topology)
        if configuring:
            job.step(JobEvent.SWITCH_LOST)
            self._listener.withdraw(job)
            self.holdings.free_multicast(job)
        return configuring or bool(gone)

    def on_part_back(self, part: str) -> None:
        """A switch is back and configured, or a link works again."""
        self._lost.pop(part, None)
        for job in self.all:
            if job.configuring and part in parts(job, self.topology):
                self._listener.configure(job)  # what came of the first attempt is undone
        self.resume()
        self._listener.on_changed()

    def resume(self) -> None:
        """Continue with jobs that waited only for their switches."""
        for job in self.all:
            if job.state is JobState.FORMING and job.complete and not job.configuring:
                self._configure(job)
                self._listener.on_changed(job)

    def release(self, job: Job) -> None:
        """The job's entries are gone: free its numbers."""
        job.step(JobEvent.RELEASED)
        self.holdings.release(job)
        self._listener.on_changed(job)

    def _end(self, job: Job, event: JobEvent, cause: Cause | None, reason: str) -> None:
        """Let a job fail or end; its entries are deleted, unless its ranks may need them."""
        waited_for, was_over = job.state is JobState.FORMING, job.over
        job.step(event)
        job.cause, job.reason = cause, reason
        kind = "job-failed" if job.state is JobState.FAILED else "job-ended"
        self._listener.on_event(kind, job, reason)
        if waited_for:
            self._listener.on_settled(job)
        if job.over and not was_over:
            self._listener.remove(job)
        self._listener.on_changed(job)

    def _remove_if_deserted(self, job: Job) -> None:
        if not job.active:
            self._remove_if_stranded(job, JobEvent.DESERTED)

    def _remove_if_stranded(self, job: Job, event: JobEvent) -> None:
        if job.stage is Stage.STRANDED:
            job.step(event)
            self._listener.remove(job)

    # -- For reforming.py ------------------------------------------------------------------

    def why_closed_for(self, job: Job) -> JobRefusedError | None:
        """Say why a job cannot be formed again or cannot run; None if it can."""
        if self._closed is not None:
            return self._closed
        needed = parts(job, self.topology) or set(self.topology.trees[job.tree])
        lost = [why for part, why in self._lost.items() if part in needed]
        return JobRefusedError(Cause.SWITCH_LOST, "; ".join(lost)) if lost else None

    def take_back(self, job: Job, ranks: Iterable[int]) -> None:
        """Take back the ranks of a failed job whose new job has failed too."""
        job.step(JobEvent.TAKEN_BACK)
        job.successor = None
        self._add(job)  # the name is theirs again
        for rank in ranks:
            member = job.members[rank]
            member.state = MemberState.ATTACHED
            leases.begin(member, self._clock(), self.lease)
        self._listener.on_event("ranks-back", job, f"{ranks_text(job.ranks(MemberState.ATTACHED))}")
        self._listener.on_changed(job)

    def forget(self, job: Job) -> None:
        """Remove a failed job from the switch although some of its ranks are still there."""
        self._remove_if_stranded(job, JobEvent.FORGOTTEN)

    def _check_open(self, switch: str, tree: str) -> None:
        """Raise JobRefusedError where no job could begin: its switch is lost, or all of a tree."""
        if self._closed is not None:
            raise self._closed
        needed = [switch] if switch not in ("", tree) else self.topology.trees[tree]
        lost = [self._lost[name] for name in needed if name in self._lost]
        if len(lost) == len(needed):
            raise JobRefusedError(Cause.SWITCH_LOST, "; ".join(lost))


def _losses_text(reasons: Mapping[JobMember, str]) -> str:
    """Say which ranks were lost: one at length, how many others there are, and which."""
    first, *others = sorted(reasons, key=lambda member: member.rank)
    if not others:
        return reasons[first]
    if len(others) == 1:
        return f"{reasons[first]}; so was {others[0]}"
    ranks = ranks_text([member.rank for member in others])
    return f"{reasons[first]}; so were {len(others)} others: {ranks}"
