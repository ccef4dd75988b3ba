# SPDX-License-Identifier: Apache-2.0
"""`init`: how a process joins a job and gets its communicator."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from p4reduce.communicator import Communicator, make_in_thread
from p4reduce.control.names import JOB_NAME, is_job_name
from p4reduce.environment import SPANS_ENVIRONMENT, job_name, placement, records_spans
from p4reduce.environment import check_shapes as shapes_agreed
from p4reduce.environment import urgent_slots as kept_for_urgent
from p4reduce.errors import ConfigurationError
from p4reduce.job_network import named
from p4reduce.latch import Latch
from p4reduce.launched import is_launched, network_of_launcher
from p4reduce.options import (
    CommunicatorOptions,
    InitOptions,
    NetworkOptions,
    RecoveryOptions,
    SlotOptions,
    check_names,
)
from p4reduce.ring.fallback import RingSettings
from p4reduce.session.machine import ENGINES, NATIVE, load
from p4reduce.session.session import SessionSettings
from p4reduce.session.waiting import Waiting
from p4reduce.spans import check_opentelemetry
from p4reduce.switches.addresses import switch_addresses
from p4reduce.switches.joining import join_all
from p4reduce.switches.side_by_side import AnySession
from p4reduce.tracebacks import short
from p4reduce.variables import BESIDE_CONTROLLER
from p4reduce.wire.format import MAX_SLOTS

if TYPE_CHECKING:
    from typing_extensions import Unpack


@short
def init(
    rank: int | None = None,
    world_size: int | None = None,
    controller: str | Sequence[str] | None = None,
    job: str | None = None,
    timeout: float = 30.0,
    **options: Unpack[InitOptions],
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
    check_names("init", options, InitOptions)
    check_text("job", job)
    check_texts("controller", controller)
    if job is not None and not is_job_name(job):
        raise ValueError(f"job={job!r}: {JOB_NAME} are needed")
    access = _access(**_of(NetworkOptions, options))
    recover, ring = _recovery(**_of(RecoveryOptions, options))
    slots, urgent = _slots(**_of(SlotOptions, options))
    agreed = shapes_agreed(options.get("check_shapes"))
    if frame_lanes.PROBLEM:
        raise ConfigurationError(frame_lanes.PROBLEM)
    spans = records_spans()
    if spans:
        check_opentelemetry(f"{SPANS_ENVIRONMENT}=1")
    place = placement(rank, world_size)
    name = job_name(job)
    environ, check, interface = access.environ, access.check, access.interface
    if access.is_of_environment and interface is None and controller is None and not named():
        started = network_of_launcher(place, timeout) if is_launched() else None
        if started is not None:
            environ, check = started.variables, _both(check, started.network.check)
    deadline = time.monotonic() + timeout
    there = switch_addresses(controller, interface, place, name, environ)
    beside = environ.get(BESIDE_CONTROLLER)
    settings = SessionSettings(
        there[0].connect(place.rank, access.engine),
        CommunicatorOptions(timeout, slots, urgent, agreed, spans),
        recover,
        access.engine,
        tuple(map(int, beside.split(","))) if beside else (),
        ring,
    )
    cancelled = Latch()
    load(access.engine)

    def join() -> AnySession:
        return join_all(
            there, place, name, settings, lambda who: Waiting(who, deadline, cancelled, check)
        )

    return make_in_thread(join, settings.options, cancelled)


def _of(group: type, options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of one group."""
    return {name: options[name] for name in group.__annotations__ if name in options}


class _Access(NamedTuple):
    """How this rank reaches the others.

    Attributes:
        environ: variables that name controller, interface and secrets.
        is_of_environment: whether they are those of the process.
    """

    interface: str | Sequence[str] | None
    environ: Mapping[str, str]
    is_of_environment: bool
    check: Callable[[], None]
    engine: str


def _access(
    interface: Any = None, network: Any = None, check: Any = None, engine: Any = NATIVE
) -> _Access:
    """Check the options of the network. Raises TypeError, ValueError."""
    check_texts("interface", interface)
    if check is not None and not callable(check):
        raise TypeError(f"check={check!r}: a function without arguments is needed, or None")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: one of {', '.join(map(repr, ENGINES))} is needed")
    if network is not None and not is_environment(network):
        raise TypeError(
            f"network={network!r}: names of environment variables and their texts are needed, or "
            "None"
        )
    environ = os.environ if network is None else network
    return _Access(interface, environ, network is None, check or _nothing, engine)


def _recovery(
    recover: Any = True, fallback: Any = None, fallback_after: Any = 5.0, ring_address: Any = None
) -> tuple[bool, RingSettings | None]:
    """Check what follows the loss of a switch. Raises TypeError, ValueError."""
    check_flag("recover", recover)
    check_text("fallback", fallback)
    check_seconds("fallback_after", fallback_after)
    check_text("ring_address", ring_address)
    if fallback is None:
        return recover, None
    if fallback != "ring":
        raise ValueError(f"fallback={fallback!r}: 'ring' or None is needed")
    if not recover:
        raise ValueError("fallback='ring' needs recover=True: the ring continues after a loss")
    return recover, RingSettings(fallback_after, ring_address)


def _slots(slots: Any = None, urgent_slots: Any = None) -> tuple[int, tuple[int, ...]]:
    """Return the slots to ask for, 0 for the default, and those of classes 1, 2 and so on.

    Raises:
        TypeError, ValueError: an argument is invalid.
        ConfigurationError: `P4REDUCE_URGENT_SLOTS` is.
    """
    if slots is not None:
        slots = number_within("slots", slots, 1, MAX_SLOTS, ", or None for the default")
    return slots or 0, kept_for_urgent(urgent_slots)


def _nothing() -> None:
    pass


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def check() -> None:
        one()
        other()

    return check
