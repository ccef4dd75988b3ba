# SPDX-License-Identifier: Apache-2.0
"""The user's interface: `init` returns a `Communicator`, whose all-reduce the switch computes."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt
from p4reduce_native import frame_lanes

from p4reduce.checks import (
    check_flag,
    check_seconds,
    check_text,
    check_texts,
    check_timeout,
    is_environment,
    number_within,
)
from p4reduce.collectives import Collectives
from p4reduce.control.names import JOB_NAME, is_job_name
from p4reduce.environment import SPANS_ENVIRONMENT, Placement, job_name, placement, records_spans
from p4reduce.environment import check_shapes as shapes_agreed
from p4reduce.environment import urgent_slots as kept_for_urgent
from p4reduce.errors import (
    AdmissionError,
    ClosedError,
    ConfigurationError,
    InterruptedCallError,
    P4ReduceError,
)
from p4reduce.handle import Handle
from p4reduce.job_network import named
from p4reduce.latch import Latch, unlock
from p4reduce.late.sums import HISTORY, PartialSums
from p4reduce.launched import is_launched, network_of_launcher
from p4reduce.ring.fallback import RingSettings
from p4reduce.session.machine import ENGINES, NATIVE, load
from p4reduce.session.session import Session, SessionSettings
from p4reduce.session.solo import Solo
from p4reduce.session.splitting import SplitGroup, SplitRequest, agree, first_trouble, trouble_row
from p4reduce.session.threaded_call import ThreadedCall
from p4reduce.session.waiting import Waiting
from p4reduce.spans import Spans, check_opentelemetry
from p4reduce.statistics import Statistics, SwitchShare
from p4reduce.switches.addresses import switch_addresses
from p4reduce.switches.dealing import CallShare, Dealer
from p4reduce.switches.joining import Newcomers, form_all_anew, join_all
from p4reduce.switches.side_by_side import SideBySideSession
from p4reduce.tensors.plans import CollectivePlan
from p4reduce.tensors.stream import Collective
from p4reduce.trace import Trace
from p4reduce.tracebacks import short
from p4reduce.variables import BESIDE_CONTROLLER
from p4reduce.wire.calls import Call
from p4reduce.wire.format import MAX_SLOTS, MAX_WORLD_SIZE

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")


@short
def init(
    rank: int | None = None,
    world_size: int | None = None,
    controller: str | Sequence[str] | None = None,
    job: str | None = None,
    timeout: float = 30.0,
    *,
    interface: str | Sequence[str] | None = None,
    slots: int | None = None,
    urgent_slots: int | Sequence[int] | None = None,
    recover: bool = True,
    fallback: str | None = None,
    fallback_after: float = 5.0,
    ring_address: str | None = None,
    check: Callable[[], None] | None = None,
    engine: str = NATIVE,
    check_shapes: bool | None = None,
    network: Mapping[str, str] | None = None,
) -> Communicator:
    """Join a job, and return when all of its ranks have joined.

    Where nothing names a network and a launcher has started this process, its ranks start one:
    all of them have to call this. See docs/deploy.md.

    Args:
        rank: of this process, 0 to world_size - 1. None: from the environment of torchrun, Open
            MPI, MPICH or Slurm, or `P4REDUCE_RANK`.
        world_size: number of ranks: 1 to 64 on one switch, up to 4,096 on a tree of switches.
            None: from the same environment, or `P4REDUCE_WORLD_SIZE`.
        controller: gRPC address, "host:port" or "unix:/path". None: `P4REDUCE_CONTROLLER`, or
            the default socket of a controller of this user. If each of several switches has its
            own controller, a list, or addresses with commas between them.
        job: name; ranks with the same one reduce together. None: `P4REDUCE_JOB`, or the id of
            the torchrun or Slurm job, or "default".
        timeout: seconds to wait for the other ranks; also the default of all collectives.
        interface: how to reach the switch. A network interface ("eth0", needs CAP_NET_RAW), or a
            port of the embedded switch: a Unix socket ("unix:/path/port{port}.sock") or a UDP port
            ("udp:switch.example:7000+{port}"). `{rank}`, `{local_rank}` and `{port}` are filled
            in; the port is rank + 1. None: `P4REDUCE_INTERFACE`.
            A list, or names with commas between them, spreads the work over as many switches, on
            all ranks in the same order. See docs/scale.md.
        slots: aggregators of each switch to ask for, 1 to 1,024: how many blocks of 1,024 bytes
            are in flight there at once. The same for all ranks. None: the controller's default.
        urgent_slots: how many of these are kept for collectives with `priority=1`; fewer than
            `slots`. Other collectives cannot use them. A list has those of priorities 1, 2 and so
            on, 7 at most. The same for all ranks. None: `P4REDUCE_URGENT_SLOTS`, or none.
        recover: if the switch is lost, wait for it until the collectives' deadlines, and continue
            there; see docs/faults.md. The same for all ranks. False: the loss is an error at once.
        fallback: "ring": if the switch does not return within `fallback_after` seconds, continue
            by TCP connections among the ranks until it does, with the same results bit for bit.
            Needs `recover`. The same for all ranks. None: keep waiting for the switch.
        fallback_after: seconds, with `fallback`.
        ring_address: "host" or "host:port" at which the other ranks reach this one for the ring, by
            a network that does not pass through the switch. None: `P4REDUCE_RING_ADDRESS`, or
            127.0.0.1 with a Unix socket and the interface's address otherwise.
        check: called repeatedly by another thread while `init` waits for the other ranks. It
            raises to end the wait, if the caller knows that they will not come.
        engine: what runs the protocol in this rank. "native": machine code. "reference": the
            readable specification in plain Python (`p4reduce.reference`), with the same results bit
            for bit, and hundreds of times slower. Communicators of one process that share a Unix
            or UDP port have the same engine.
        check_shapes: whether different shapes of the ranks' arrays are a `MismatchError`. False:
            only the numbers of elements must be the same. The same for all ranks; `split` and
            `dup` inherit it. None: `P4REDUCE_CHECK_SHAPES`, 0 or 1, or True.
        network: variables of a network, such as `p4reduce.launch.Network.variables`, in place of
            those of the environment that name controller, interface and secrets. None: the
            environment.

    Returns:
        A communicator, to be closed or used as a context manager.

    Raises:
        TypeError, ValueError: an argument is invalid; names it.
        ConfigurationError: a setting is missing or out of range; names the variables.
        ControllerUnreachableError: nobody answers at the controller's address.
        AdmissionError: the rank is taken, the numbers do not fit the job, no slots are free.
        SwitchUnreachableError: the interface cannot be opened.
        P4ReduceTimeoutError: ranks are missing; names them and what they lack. Or the ring could
            not be set up.

    Example:
        >>> import numpy as np
        >>> import p4reduce
        >>> with p4reduce.init() as comm:
        ...     gradient = np.full(1000, comm.rank, np.float32)
        ...     mean = comm.allreduce(gradient, op=p4reduce.MEAN)
    """
    check_timeout(timeout)
    if slots is not None:
        slots = number_within("slots", slots, 1, MAX_SLOTS, ", or None for the default")
    for argument, value in (("job", job), ("fallback", fallback), ("ring_address", ring_address)):
        check_text(argument, value)
    for argument, texts in (("controller", controller), ("interface", interface)):
        check_texts(argument, texts)
    check_flag("recover", recover)
    check_seconds("fallback_after", fallback_after)
    if check is not None and not callable(check):
        raise TypeError(f"check={check!r}: a function without arguments is needed, or None")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: one of {', '.join(map(repr, ENGINES))} is needed")
    if job is not None and not is_job_name(job):
        raise ValueError(f"job={job!r}: {JOB_NAME} are needed")
    if network is not None and not is_environment(network):
        raise TypeError(
            f"network={network!r}: names of environment variables and their texts are needed, or "
            "None"
        )
    if frame_lanes.PROBLEM:
        raise ConfigurationError(frame_lanes.PROBLEM)
    ring = _ring_settings(fallback, fallback_after, ring_address, recover)
    place = placement(rank, world_size)
    name = job_name(job)
    if network is None and interface is None and controller is None and not named():
        started = network_of_launcher(place, timeout) if is_launched() else None
        if started is not None:
            network = started.variables
            check = _both(check or _nothing, started.network.check)
    environ = os.environ if network is None else network
    deadline = time.monotonic() + timeout
    there = switch_addresses(controller, interface, place, name, environ)
    spans = records_spans()
    if spans:
        check_opentelemetry(f"{SPANS_ENVIRONMENT}=1")
    urgent, agreed = kept_for_urgent(urgent_slots), shapes_agreed(check_shapes)
    options = CommunicatorOptions(timeout, slots or 0, ring, urgent, agreed, spans)
    connect = there[0].connect(place.rank, engine)
    beside = environ.get(BESIDE_CONTROLLER)
    settings = SessionSettings(
        connect,
        timeout,
        recover,
        engine,
        tuple(map(int, beside.split(","))) if beside else (),
    )
    cancelled = Latch()
    load(engine)

    def make() -> Communicator:
        session = join_all(
            there,
            place,
            job=name,
            settings=settings,
            ring=ring,
            slots=options.slots,
            urgent_slots=options.urgent_slots,
            waiting=lambda who: Waiting(who, deadline, cancelled, check or _nothing),
        )
        return Communicator(session, timeout, options)

    return _made(make, cancelled)


@dataclass(frozen=True)
class CommunicatorOptions:
    """The options of a communicator, which its children inherit.

    Attributes:
        timeout: the default timeout of collectives, in seconds.
        slots: of the switch; 0: the controller's default.
        ring: the settings of the ring to fall back to, or None.
        urgent_slots: how many of the slots are for classes 1, 2 and so on.
        check_shapes: whether the ranks agree on shapes, or on numbers of elements alone.
        spans: whether spans are recorded from the start.
    """

    timeout: float
    slots: int = 0
    ring: RingSettings | None = None
    urgent_slots: tuple[int, ...] = ()
    check_shapes: bool = True
    spans: bool = False


class Communicator(Collectives):
    """The ranks of a job, which reduce together. Made by `init`, `split`, `dup` and `reform`.

    All ranks must make the same calls in the same order, with the same operation, root, shape,
    dtype, precision and name. Otherwise all of them raise `MismatchError`, which names the ranks
    and their calls. Calls from several threads are safe, but only useful if their order is the
    same on all ranks.

    After an error that leaves the ranks out of step (timeout, mismatch, lost worker, lost switch)
    the communicator is broken. All collectives in flight end with that error, and so does each
    later one. `LaneOverflowError` breaks nothing.

    A child made by `os.fork` cannot use its parent's communicator, because threads do not survive
    a fork: `ClosedError`. It cannot call `init` either while its parent was in a job at the fork:
    `ConfigurationError`.
    """

    def __init__(
        self,
        session: Session | Solo | SideBySideSession,
        timeout: float,
        options: CommunicatorOptions | None = None,
    ) -> None:
        self._session = session
        self._rank, self._size = session.rank, session.world_size
        if isinstance(session, SideBySideSession):
            self._sessions: Sequence[Session | Solo] = session.sessions
            self._dealer = Dealer(self._sessions, session.wake)
        else:
            self._sessions = (session,)
            self._dealer = Dealer(self._sessions)
        self._timeout = timeout
        self._options = options or CommunicatorOptions(timeout)
        self._lock = threading.RLock()
        self._starting = False  # between counting collectives and having started all of them
        self._call = _CallInFlight()
        self._in_flight: deque[Collective] = deque()
        self._closed = False
        self._observers: tuple[Trace | Spans, ...] = ()
        self._partial: PartialSums | None = None
        self._partial_lock = threading.Lock()  # held while the ranks agree, unlike the other one
        self._process = os.getpid()
        # At exit, or when the last reference is gone: the others must not wait for us.
        self._finalizer = weakref.finalize(self, _abandon, session, self._process)
        if self._options.spans:
            self.spans()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._session.broken else "open"
        return f"<Communicator of job {self.job!r}: rank {self.rank} of {self.size}, {state}>"

    @property
    def rank(self) -> int:
        """The rank of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def leaf(self) -> tuple[int, ...]:
        """The ranks at this rank's own switch of a tree, in order; on a single switch all ranks."""
        return self._sessions[0].leaf

    @property
    def job(self) -> str:
        """The job's name."""
        return self._session.job

    @property
    def switches(self) -> tuple[SwitchShare, ...]:
        """Each switch's share of the work, in the order of `init(interface=)`."""
        shares = self._dealer.shares
        return tuple(
            SwitchShare(share, session.statistics())
            for share, session in zip(shares, self._sessions, strict=True)
        )

    @property
    def calls(self) -> int:
        """How many collectives this rank has called.

        After an exception in the middle of a call, such as a signal handler's, this shows whether
        the call had begun.
        """
        return self._dealer.calls

    @property
    def slots(self) -> int:
        """The number of slots on all switches, which is how many blocks can be in flight."""
        return self._session.slots

    @property
    def urgent_slots(self) -> int:
        """How many of these slots are only for collectives with a priority above 0."""
        return sum(self._session.urgent_slots)

    @property
    def class_slots(self) -> tuple[int, ...]:
        """The number of slots per class, that of priority 0 first."""
        return (self.slots - self.urgent_slots, *self._session.urgent_slots)

    @property
    def broken(self) -> P4ReduceError | None:
        """The error that broke this communicator, and that later calls raise; None if intact."""
        return self._session.broken

    @property
    def stats(self) -> Statistics:
        """Counts of bytes, frames, retransmissions and duplicates, and round-trip times."""
        try:
            return self._session.statistics()
        except BaseException:
            self._session.unlock()
            raise

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Record what happens to each collective from now on, as a trace for Perfetto or Chrome.

        The trace has the times of each collective: preparing, queueing for slots, waiting until
        all ranks have called it, sending and receiving. After a timeout it names the ranks that
        the switch waited for, and counts repeated frames. docs/performance.md says how to read it.

        Args:
            path: of the file, JSON in the Trace Event Format, written when the trace is closed.
                "{rank}" in it is replaced by this rank's number.

        Returns:
            The trace, to be closed or used as a context manager; it ends with the communicator at
            the latest. It has no collectives that started before it, and none of communicators
            that `split`, `dup` and `reform` make.

        Raises:
            TypeError: `path` is not a path.
            ValueError: this communicator is being traced already.
            OSError: the file cannot be written.
            ClosedError: this communicator is closed.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path={path!r}: a string or a path is needed")
        with self._observing() as others:
            before = next((one for one in others if isinstance(one, Trace)), None)
            if before is not None:
                raise ValueError(
                    f"this communicator is being traced already, to {before.path}: close that "
                    "trace first"
                )
            trace = Trace(path, self.rank, self.size, self.job)
            self._observers = (*others, trace)
            return trace

    def spans(self, provider: TracerProvider | None = None) -> Spans:
        """Record each collective from now on as a span of OpenTelemetry.

        The spans of a collective's ranks are one trace, although the ranks exchange nothing for
        this; see docs/performance.md. `P4REDUCE_SPANS=1` records all communicators from their
        start.

        Args:
            provider: of tracers. None: what `opentelemetry.trace.set_tracer_provider` was given.

        Returns:
            The recording, to be closed or used as a context manager; it ends with the communicator
            at the latest. It does not shut the provider down.

        Raises:
            ConfigurationError: opentelemetry-api is not installed.
            ValueError: this communicator's spans are being recorded already.
            ClosedError: this communicator is closed.
        """
        check_opentelemetry("spans()")
        with self._observing() as others:
            if any(isinstance(one, Spans) for one in others):
                raise ValueError(
                    "this communicator's spans are being recorded already: close that recording "
                    f"first, or unset {SPANS_ENVIRONMENT}"
                )
            spans = Spans(provider, self._sessions[0].origin, self.rank, self.size)
            self._observers = (*others, spans)
            return spans

    @contextlib.contextmanager
    def _observing(self) -> Iterator[list[Trace | Spans]]:
        """Have the lock, for one more observer; yields those that are open. Raises ClosedError."""
        self._check_process()
        with self._lock:
            if self._closed:
                raise ClosedError("the communicator is closed")
            yield [one for one in self._observers if one.open]

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ClosedError(
                f"this communicator belongs to process {self._process}, from which this one was "
                'forked; fork before init, or start the process by multiprocessing\'s "spawn"'
            )

    # -- What runs -------------------------------------------------------------------------------

    def _start_all(
        self,
        plans: Sequence[CollectivePlan[Any]],
        result: Callable[[], T],
        timeout: float | None,
        *,
        here: bool = False,
    ) -> Handle[T]:
        if timeout is None:
            timeout = self._timeout
        check_timeout(timeout)
        self._check_process()
        called = time.monotonic() if self._observers else 0.0
        with self._lock:
            if self._closed:
                raise ClosedError("the communicator is closed")
            if self._starting and self._session.broken is None:
                self._session.on_interrupted(_interrupted("another call, which had not begun all"))
            if len(self._sessions) > 1 and (broken := self._session.broken) is not None:
                raise copy.copy(broken)  # a switch that was spared by it would take the call
            deal = self._dealer.deal(plans)
            # All are made before any runs: what is wrong with one input must not leave this rank
            # with half of what the others call.
            streams = [self._stream(part, timeout) for part in deal.parts]
            for observer in self._observers:
                for part, stream in zip(deal.parts, streams, strict=True):
                    observer.add(stream, called or stream.started, part.session.job)
            # Counted before they start: two collectives of one number would be added up as one.
            self._call.started = self._starting = True
            deal.keep()
            self._in_flight.extend(streams)
            here = (here or self._call.is_awaited) and len(streams) == 1
            try:
                for part, stream in zip(deal.parts, streams, strict=True):
                    part.session.submit(stream, here=here)
            except P4ReduceError as error:
                for stream in streams:
                    stream.finish(error)
                raise
            self._starting = False
            while len(self._in_flight) > 1 and self._in_flight[0].done():
                self._in_flight.popleft()
        wanted = [stream for part, stream in zip(deal.parts, streams, strict=True) if part.wanted]
        return Handle(wanted, result)

    def awaiting(self) -> AbstractContextManager[None]:
        """Within it, this thread waits for a call by its handle, before it does anything else.

        So it may run the call itself, as it does with one that returns no handle: to wake the
        progress thread takes longer than a small collective.
        """
        return self._call

    def _stream(self, part: CallShare, timeout: float) -> Collective:
        plan = part.plan
        own = _slots_for(plan.call, part.session)
        return Collective(
            plan.call if self._options.check_shapes else plan.call.of_any_shape(),
            plan.source,
            plan.target,
            sequence=part.sequence,
            slots=len(own),
            first_slot=own.start,
            timeout=timeout,
            lane_format=plan.lane_format,
            noise=plan.noise(self.rank, part.number),
            number=part.number,
            counted=plan.counted,
            on_end=part.on_end,
        )

    def _begin(self) -> None:
        self._call.started = False

    def _left_by(self, error: BaseException) -> None:
        if isinstance(error, P4ReduceError):
            return
        if isinstance(error, (TypeError, ValueError, MemoryError)) and not self._call.started:
            return  # what is wrong with the arguments shows before anything has started
        if self._process != os.getpid():
            return
        unlock(self._lock)
        broken_by = _interrupted(f"{type(error).__name__} {error}".rstrip())
        self._session.on_interrupted(broken_by)
        for collective in list(self._in_flight):
            collective.finish(broken_by)  # what had not been started when the exception came

    # -- Ranks that are late -----------------------------------------------------------------------

    @short
    def partial_sums(self, *, history: int | None = None) -> PartialSums:
        """Return the sums that `allreduce(deadline=)` uses, with `behind` and `catch_up`.

        The first call is a collective, which makes a `dup`. `allreduce(deadline=)` makes that call
        itself if necessary. The sums are closed with this communicator. See docs/late.md.

        Args:
            history: in the first call: how many sums a rank can be behind before the others wait
                for it; the same on all ranks. None: 16.

        Raises:
            TypeError, ValueError: `history` is invalid, or differs from the first call's.
            P4ReduceError: as `dup`.
        """
        with self._partial_lock:
            if self._partial is None:
                kept = HISTORY if history is None else history
                self._partial = PartialSums(self, history=kept, timeout=self._timeout)
            elif history not in (None, self._partial.history):
                raise ValueError(f"history={history}: it is {self._partial.history} already")
            return self._partial

    # -- Groups ----------------------------------------------------------------------------------

    @short
    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        timeout: float | None = None,
        slots: int | None = None,
        urgent_slots: int | Sequence[int] | None = None,
    ) -> Communicator | None:
        """Make communicators of parts of the ranks: a collective, which all ranks must call.

        As MPI's `MPI_Comm_split`. Each group of two or more is a job of its own on the switch,
        with its own slots, over this communicator's connections to switch and controller. A group
        of one rank uses neither. The new communicators are independent: this one may be used at
        the same time, split again, or closed before them. See docs/collectives.md.

        Args:
            color: ranks with the same color are a group; 0 or more. None: this rank is in no group.
            key: the order of the ranks in their group. Ranks with equal keys keep their order.
            timeout: seconds for the whole call, and the default of the new communicator's
                collectives. None: this communicator's.
            slots: to ask for, as in `init`; the same in a group. None: what this communicator
                asked for.
            urgent_slots: as `slots`.

        Returns:
            The communicator of this rank's group, which is closed separately; None for no group.

        Raises:
            TypeError, ValueError: an argument is invalid. The other ranks get ConfigurationError.
            ConfigurationError: another rank's arguments are invalid, or the ranks of a group asked
                for different numbers of slots. This communicator can still be used.
            AdmissionError: the switch has too few slots for a group, and no rank gets a new
                communicator. This communicator can still be used.
            MismatchError: another rank called something else; this communicator is broken.
            WorkerLostError: a rank of this communicator was lost or left meanwhile.
            P4ReduceTimeoutError: ranks are missing; names them.
            P4ReduceError: as `allreduce`, and as `init`.
        """
        return self._divide("split", color, key, (timeout, slots, urgent_slots))

    @short
    def dup(
        self,
        *,
        timeout: float | None = None,
        slots: int | None = None,
        urgent_slots: int | Sequence[int] | None = None,
    ) -> Communicator:
        """Make a communicator of the same ranks, with an order of calls of its own.

        As MPI's `MPI_Comm_dup`: for a library's or a thread's own traffic. Calls on the two may
        come in any order. Otherwise as `split`.

        Args:
            timeout: as in `split`.
            slots: as in `split`.
            urgent_slots: as in `split`.

        Raises:
            P4ReduceError: as `split`.
        """
        new = self._divide("dup", 0, self.rank, (timeout, slots, urgent_slots))
        assert new is not None
        return new

    def _divide(
        self, routine: str, color: Any, key: Any, overrides: tuple[Any, Any, Any]
    ) -> Communicator | None:
        self._check_process()
        options, refused = self._options, None
        try:
            options = _overridden(options, *overrides)
            wish = SplitRequest.of(color, key, (options.slots, options.urgent_slots))
        except (TypeError, ValueError) as error:
            refused, wish = error, SplitRequest.wrong()  # the others must learn of it
        deadline = time.monotonic() + options.timeout
        self._begin()
        try:
            with contextlib.ExitStack() as undo:
                new = self._join_group(routine, wish, options, deadline, undo)
        except BaseException as error:
            if refused is None or not isinstance(error, ConfigurationError):
                self._left_by(error)
                raise
        if refused is not None:
            raise refused
        return new

    def _join_group(
        self,
        routine: str,
        wish: SplitRequest,
        options: CommunicatorOptions,
        deadline: float,
        undo: contextlib.ExitStack,
    ) -> Communicator | None:
        """Agree on the groups, let the first rank of each make its job, and join this rank's."""

        def tell(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
            left = max(deadline - time.monotonic(), 1e-3)
            return self.allgather(row, routine, timeout=left, counts=[1] * self.size)

        session, rank = self._session, self.rank
        groups = agree(self.job, tell(wish.row()))
        mine = next((group for group in groups if rank in group.ranks), None)
        if isinstance(session, Solo) or all(len(group.ranks) == 1 for group in groups):
            return None if mine is None else _alone(mine, options)
        newcomer, trouble = None, ""
        cancelled = Latch()
        if mine is not None and len(mine.ranks) > 1:
            newcomer = _newcomer(session, mine, rank, options, deadline, cancelled)
            undo.callback(newcomer.give_up)
            if rank == mine.ranks[0]:
                try:
                    ThreadedCall(
                        lambda: newcomer.join_job(options.slots, options.urgent_slots),
                        cancel=cancelled.set,
                    )()
                except P4ReduceError as error:
                    trouble = str(error)
        if trouble := first_trouble(tell(trouble_row(trouble)), groups):
            raise AdmissionError(f"job {self.job!r} was not split, for {trouble}")
        if mine is None:
            return None
        if newcomer is None:
            return _alone(mine, options)

        def make() -> Communicator:
            if rank != mine.ranks[0]:
                newcomer.join_job(options.slots, options.urgent_slots)
            return Communicator(newcomer.begin(), options.timeout, options)

        return _made(make, cancelled)

    # -- After a loss ----------------------------------------------------------------------------

    @short
    def reform(self, world_size: int | None = None, timeout: float | None = None) -> Communicator:
        """Continue after `WorkerLostError` with the remaining ranks, all of which must call this.

        It closes this communicator. A collective that one of these ranks has completed is complete
        on all of them, and any other one has failed on all. Only replacements lack the state; rank
        0 may broadcast it. docs/faults.md has the pattern.

        Args:
            world_size: of the new job. With the old size or more, the ranks keep their numbers, and
                replacements join with the missing ones by `init`. None: the number of remaining
                ranks, which are renumbered without gaps in the old order.
            timeout: seconds to wait for all remaining ranks to call this, and for replacements.
                None: that of `init`.

        Returns:
            A communicator; `rank` and `size` are the new ones.

        Raises:
            AdmissionError: this rank was declared lost while others continue; the job has not
                failed, and a job of one rank never does; the ranks ask for different world sizes.
            P4ReduceTimeoutError: ranks are missing; names them. You may call this again.
            JobEndedError: the job was deleted meanwhile.
            ControllerUnreachableError, SwitchUnreachableError: nobody answers.
            ClosedError: this communicator is closed.
        """
        timeout = self._timeout if timeout is None else timeout
        check_timeout(timeout)
        if world_size is not None:
            world_size = number_within("world_size", world_size, 1, MAX_WORLD_SIZE)
        self._check_process()
        session = self._session
        if isinstance(session, Solo):
            raise AdmissionError(f"{self.job!r} has one rank and no job that could have failed")

        def form() -> Communicator:
            new = form_all_anew(session, world_size or 0, timeout, cancelled)
            with self._lock:
                self._closed = True
            self._end_partial_sums(wait=False)
            self._finalizer.detach()
            self._end_observing()
            return Communicator(new, self._timeout, self._options)

        cancelled = Latch()
        return _made(form, cancelled)

    # -- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the collectives in flight, within their deadlines, and leave the job.

        Closing twice is not an error. Collectives that fail meanwhile raise only from their
        handles.
        """
        self._end(wait=True)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error this rank will not take part in what the others do next: leave at once.
        self._end(wait=kind is None)

    def _end(self, *, wait: bool) -> None:
        if self._process != os.getpid():
            return
        self._end_partial_sums(wait=wait)
        with self._lock:
            self._closed = True
        if wait and not self._starting:  # else by a signal handler, in the middle of a call
            for collective in list(self._in_flight):
                collective.join()
        self._session.close(linger=wait)
        self._finalizer.detach()
        self._end_observing()

    def _end_partial_sums(self, *, wait: bool) -> None:
        if self._partial is not None:
            if wait:
                self._partial.close()
            else:
                self._partial.abandon()

    def _end_observing(self) -> None:
        with contextlib.ExitStack() as closing:  # all, also where one cannot write its file
            for observer in self._observers:
                closing.callback(observer.close)


class _CallInFlight(threading.local):
    """A thread's call under way; and a context, in which it is awaited.

    Attributes:
        started: whether it has given anything to the progress thread.
        is_awaited: whether the thread waits for what it starts at once, also by a handle.
    """

    started = False
    is_awaited = False

    def __enter__(self) -> None:
        self.is_awaited = True

    def __exit__(self, *error: object) -> None:
        self.is_awaited = False


def _slots_for(call: Call, session: Session | Solo) -> range:
    """Return the slots that a call's class has on a switch."""
    if isinstance(session, Solo):
        return range(session.slots)
    if call.priority >= len(session.classes):
        raise ValueError(
            f"priority={call.priority} needs slots that are kept for it: init(urgent_slots=) or "
            "P4REDUCE_URGENT_SLOTS says how many for each priority from 1 on, on all ranks; "
            f"{len(session.classes) - 1} of them have some here"
        )
    return session.classes[call.priority]


def _interrupted(by: str) -> InterruptedCallError:
    return InterruptedCallError(
        f"an earlier call was interrupted by {by}. The other ranks may count on it, so "
        "this rank has left the job; close this communicator, and call init again"
    )


def _made(make: Callable[[], Communicator], cancelled: Latch) -> Communicator:
    """Make a communicator in a thread of its own; close it if the caller is gone by then."""
    making = ThreadedCall(make, cancel=cancelled.set, undo=lambda comm: comm._end(wait=False))
    try:
        return making()
    except P4ReduceError:
        raise
    except BaseException:
        making.abandon()
        raise


def _overridden(
    options: CommunicatorOptions, timeout: Any, slots: Any, urgent_slots: Any
) -> CommunicatorOptions:
    if timeout is not None:
        check_timeout(timeout)
        options = replace(options, timeout=timeout)
    if slots is not None:
        hint = ", or None for as many as this communicator asked for"
        options = replace(options, slots=number_within("slots", slots, 1, MAX_SLOTS, hint))
    if urgent_slots is not None:
        options = replace(options, urgent_slots=kept_for_urgent(urgent_slots))
    return options


def _alone(group: SplitGroup, options: CommunicatorOptions) -> Communicator:
    return Communicator(Solo(group.name), options.timeout, options)


def _newcomer(
    parent: Session | SideBySideSession,
    group: SplitGroup,
    rank: int,
    options: CommunicatorOptions,
    deadline: float,
    cancelled: Latch,
) -> Newcomers:
    """Return a rank on its way into a group, by its parent's ports and connections."""

    def check() -> None:
        if parent.broken is not None:
            raise copy.copy(parent.broken)

    place = Placement(group.ranks.index(rank), len(group.ranks), rank)
    return Newcomers.of_group(
        parent,
        group.name,
        place=place,
        timeout=options.timeout,
        ring=options.ring,
        waiting=lambda who: Waiting(who, deadline, cancelled, check),
        ranks=group.ranks,
    )


def _nothing() -> None:
    pass


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def check() -> None:
        one()
        other()

    return check


def _ring_settings(
    fallback: str | None, after: float, address: str | None, recover: bool
) -> RingSettings | None:
    if fallback is None:
        return None
    if fallback != "ring":
        raise ValueError(f"fallback={fallback!r}: 'ring' or None is needed")
    if not recover:
        raise ValueError("fallback='ring' needs recover=True: the ring continues after a loss")
    return RingSettings(after, address)


def _abandon(session: Session | Solo | SideBySideSession, process: int) -> None:
    if os.getpid() == process:
        session.abandon()
