# SPDX-License-Identifier: Apache-2.0
"""Rank, world size and job from what the launcher put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p4reduce.checks import check_flag, number_within, whole_number
from p4reduce.errors import ConfigurationError
from p4reduce.wire.calls import MAX_CLASSES
from p4reduce.wire.format import MAX_SLOTS, MAX_WORLD_SIZE

URGENT_SLOTS_ENVIRONMENT = "P4REDUCE_URGENT_SLOTS"
CHECK_SHAPES_ENVIRONMENT = "P4REDUCE_CHECK_SHAPES"
SPANS_ENVIRONMENT = "P4REDUCE_SPANS"


@dataclass(frozen=True)
class Launcher:
    """The environment variables by which a launcher sets a process's rank."""

    name: str
    rank_name: str
    world_size_name: str
    local_rank_name: str


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    SLURM := Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Innermost first: torchrun and mpirun often run within a Slurm job, which then describes nodes."""

_SLURM_STEPS = ("SLURM_STEP_ID", "SLURM_STEPID")
_LAST_STEP = 0xFFFF_FFF0  # batch scripts and interactive shells have greater numbers

OWN = Launcher("p4reduce", "P4REDUCE_RANK", "P4REDUCE_WORLD_SIZE", "P4REDUCE_LOCAL_RANK")

_JOB_NAMES = ("P4REDUCE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
_DEFAULT_JOB = "default"
_FOR_CLASSES = f"1 or more for each of up to {MAX_CLASSES - 1} classes, {MAX_SLOTS - 1:,} in all,"
_NO_RUN_ID = "none"  # what torchrun says where nobody gave it an id


@dataclass(frozen=True)
class Placement:
    """The rank of this process. `local_rank` is the rank itself if nothing else is set."""

    rank: int
    world_size: int
    local_rank: int


def placement(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] = os.environ
) -> Placement:
    """Find rank and world size.

    Arguments win. None is replaced by the variables of torchrun, Open MPI, MPICH (PMI),
    `P4REDUCE_RANK` and `P4REDUCE_WORLD_SIZE`, or Slurm, whichever come first. Slurm's count only
    within a step: in a batch script and in the shell of salloc they describe the allocation.

    Args:
        rank: as given by the caller.
        world_size: as given by the caller.
        environ: of the process.

    Raises:
        TypeError: an argument is not an integer.
        ConfigurationError: a value is missing, no number or out of range, or P4REDUCE_… differs
            from the launcher's; names the variables.
    """
    launcher = next((one for one in LAUNCHERS if _is_used_by(one, environ)), None)
    own = OWN if _is_used_by(OWN, environ) else None
    if launcher is not None and own is not None and launcher is not SLURM:
        for theirs, ours in (
            (launcher.rank_name, own.rank_name),
            (launcher.world_size_name, own.world_size_name),
        ):
            if theirs in environ and ours in environ and environ[theirs] != environ[ours]:
                raise ConfigurationError(
                    f"{theirs}={environ[theirs]} ({launcher.name}) and {ours}={environ[ours]} "
                    "disagree; unset one of them"
                )
    # A step of Slurm may start other processes than one for each rank, and then these say so.
    order = (own, launcher) if launcher is SLURM else (launcher, own)
    sources = [one for one in order if one is not None]
    ranked = _source(sources, "rank", environ)
    if rank is None:
        rank = _number(environ, ranked.rank_name, "rank", bool(sources))
    rank = whole_number("rank", rank)
    if world_size is None:
        name = _source(sources, "world_size", environ).world_size_name
        world_size = _number(environ, name, "world_size", bool(sources))
    world_size = whole_number("world_size", world_size)
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise ConfigurationError(
            f"world size {world_size} is not within 1 to {MAX_WORLD_SIZE}, the most ranks "
            "of a tree of switches"
        )
    if not 0 <= rank < world_size:
        raise ConfigurationError(
            f"rank {rank} does not fit world size {world_size}: ranks are 0 to {world_size - 1}"
        )
    local = environ.get(ranked.local_rank_name, "")
    return Placement(rank, world_size, int(local) if local.isdecimal() else rank)


def job_name(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the job's name: the argument, $P4REDUCE_JOB, the launcher's id, or "default".

    After an elastic restart, torchrun's ranks get another name.
    """
    if given is not None:
        return given
    name = next((environ[name] for name in _JOB_NAMES if environ.get(name)), _DEFAULT_JOB)
    if name == _NO_RUN_ID == environ.get("TORCHELASTIC_RUN_ID") and "MASTER_PORT" in environ:
        name = f"torchrun {environ.get('MASTER_ADDR', '')}:{environ['MASTER_PORT']}"
    # The ranks of the start before may still be in the job of that name, or counted as lost.
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return name if restarts == "0" else f"{name}, restart {restarts}"


def urgent_slots(
    given: int | Sequence[int] | None, environ: Mapping[str, str] = os.environ
) -> tuple[int, ...]:
    """Return the slots of classes 1, 2 and so on: the argument, $P4REDUCE_URGENT_SLOTS, or none.

    Raises:
        TypeError, ValueError: the argument is neither a number of slots nor a list of these.
        ConfigurationError: the variable is neither of these.
    """
    if given is not None:
        if not isinstance(given, (list, tuple)):
            number = number_within("urgent_slots", given, 0, MAX_SLOTS - 1)
            return (number,) if number else ()
        needed = f"{_FOR_CLASSES} are possible"
        numbers = tuple(_whole(one, given, needed) for one in given)
        if not _fit_classes(numbers):
            raise ValueError(f"urgent_slots={given!r}: {needed}")
        return numbers
    text = environ.get(URGENT_SLOTS_ENVIRONMENT) or "0"
    parts = text.split(",")
    if all(part.strip().isdecimal() for part in parts):
        numbers = tuple(map(int, parts))
        if numbers == (0,):
            return ()
        if _fit_classes(numbers):
            return numbers
    raise ConfigurationError(
        f"{URGENT_SLOTS_ENVIRONMENT}={text!r}: 0 to {MAX_SLOTS - 1:,} slots are possible, or "
        f"{_FOR_CLASSES} with commas between them"
    )


def _whole(one: Any, given: Sequence[Any], needed: str) -> int:
    try:
        return whole_number("urgent_slots", one)
    except TypeError:
        raise TypeError(f"urgent_slots={given!r}: {needed}") from None


def _fit_classes(numbers: tuple[int, ...]) -> bool:
    return len(numbers) < MAX_CLASSES and sum(numbers) < MAX_SLOTS and min(numbers, default=1) > 0


def check_shapes(given: bool | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ranks must agree on shapes: the argument, $P4REDUCE_CHECK_SHAPES, or True.

    Raises:
        TypeError: the argument is no bool.
        ConfigurationError: the variable is neither 0 nor 1.
    """
    if given is not None:
        check_flag("check_shapes", given)
        return bool(given)
    return _flag(environ, CHECK_SHAPES_ENVIRONMENT, "1", "or 0 where ranks' shapes differ")


def records_spans(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether communicators record spans from their start: $P4REDUCE_SPANS, or False.

    Raises:
        ConfigurationError: the variable is neither 0 nor 1.
    """
    return _flag(environ, SPANS_ENVIRONMENT, "0", "to record spans of all collectives, or 0")


def _flag(environ: Mapping[str, str], name: str, default: str, meaning: str) -> bool:
    text = environ.get(name) or default
    if text not in ("0", "1"):
        raise ConfigurationError(f"{name}={text!r}: 1 is possible, {meaning}")
    return text == "1"


def is_placed(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment sets the rank or the world size."""
    return any(_is_used_by(one, environ) for one in (*LAUNCHERS, OWN))


def _is_used_by(launcher: Launcher, environ: Mapping[str, str]) -> bool:
    if launcher is SLURM and not _is_in_step(environ):
        return False
    return launcher.rank_name in environ or launcher.world_size_name in environ


def _is_in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun has started this process as a task."""
    step = next((environ[name] for name in _SLURM_STEPS if environ.get(name)), "")
    return step.isdecimal() and int(step) < _LAST_STEP


def _source(sources: Sequence[Launcher], argument: str, environ: Mapping[str, str]) -> Launcher:
    """Return the first that has the argument; else the one that should have it."""
    having = (one for one in sources if _name(one, argument) in environ)
    return next(having, next(iter(sources), OWN))


def _name(launcher: Launcher, argument: str) -> str:
    """Return the name of the variable for an argument, "rank" or "world_size"."""
    return launcher.rank_name if argument == "rank" else launcher.world_size_name


def _number(environ: Mapping[str, str], name: str, argument: str, launcher_found: bool) -> int:
    text = environ.get(name)
    if text is None and launcher_found:
        raise ConfigurationError(
            f"{name} is not set, though the other variable of that launcher is; set it or pass "
            f"{argument}="
        )
    if text is None:
        tried = ", ".join(_name(one, argument) for one in (*LAUNCHERS, OWN))
        raise ConfigurationError(
            f"no {argument}: pass {argument}= or set one of {tried}; or start all ranks, with a "
            "switch and a controller, by p4reduce-lab exec -n 4 -- python …"
            + ("; in this Slurm allocation, by srun" if "SLURM_JOB_ID" in environ else "")
        )
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a number") from None
