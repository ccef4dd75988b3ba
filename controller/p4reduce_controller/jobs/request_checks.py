# SPDX-License-Identifier: Apache-2.0
"""Checks of the values in requests."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.control.names import JOB_NAME, MAX_NAME, is_job_name
from p4reduce.wire.calls import MAX_CLASSES
from p4reduce_native.frame_lanes import FRAME_LANES, VARIABLE

from p4reduce_controller.jobs.refusals import Cause, JobRefusedError

MAX_ADDRESS = 262  # a host name's 255, a colon, a port


def printable(text: str, longest: int = MAX_NAME) -> str:
    """Return the printable part of `text`, cut to `longest` characters."""
    return "".join(filter(str.isprintable, text))[:longest]


def check_name(name: str) -> None:
    """Raise JobRefusedError if `name` cannot be a job's name."""
    if not is_job_name(name):
        shown = name[: MAX_NAME + 1]
        raise JobRefusedError(Cause.INVALID, f"{shown!r} is not a job name: {JOB_NAME}")


def check_number(what: str, value: int, lowest: int, highest: int) -> None:
    """Raise JobRefusedError unless `value` is within the limits."""
    if not lowest <= value <= highest:
        raise JobRefusedError(Cause.INVALID, f"{what} {value} is not within {lowest} and {highest}")


def check_lanes(rank: int, lanes: int) -> None:
    """Raise JobRefusedError unless the switch's program sums frames of so many lanes; 0: of 256."""
    lanes = lanes or 256
    if lanes != FRAME_LANES:
        raise JobRefusedError(
            Cause.INVALID,
            f"rank {rank} has {lanes} lanes in a frame, and the switch's program sums "
            f"{FRAME_LANES}: set {VARIABLE}={FRAME_LANES} for the rank, or {VARIABLE}="
            f"{lanes} for the controller",
        )


def check_classes(name: str, urgent_slots: Sequence[int], slots: int) -> None:
    """Raise JobRefusedError unless a job with these slots can reserve some for classes 1, 2, …"""
    if len(urgent_slots) >= MAX_CLASSES:
        raise JobRefusedError(
            Cause.INVALID,
            f"urgent slots of {len(urgent_slots)} classes in job {name!r}: {MAX_CLASSES - 1} "
            "classes can have some",
        )
    if not all(urgent_slots):
        raise JobRefusedError(
            Cause.INVALID,
            f"{classes_text(urgent_slots)} urgent slots in job {name!r}: each class needs one",
        )
    if sum(urgent_slots) >= slots:
        raise JobRefusedError(
            Cause.INVALID,
            f"{classes_text(urgent_slots)} urgent slots of {slots} in job {name!r}: at least one "
            "must remain for other collectives",
        )


def classes_text(urgent_slots: Sequence[int]) -> str:
    """Return slots per class for messages: "8", or "16 + 8" for two classes."""
    return " + ".join(map(str, urgent_slots)) or "0"
