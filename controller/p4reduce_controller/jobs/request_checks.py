# SPDX-License-Identifier: Apache-2.0
"""What requests may say."""

from __future__ import annotations

from p4reduce.control.names import JOB_NAME, MAX_NAME, is_job_name

from p4reduce_controller.jobs.refusals import Cause, RefusedError

MAX_ADDRESS = 262  # a host name's 255, a colon, a port


def printable(text: str, longest: int = MAX_NAME) -> str:
    """Return what of `text` can be shown in a terminal, cut to `longest` characters."""
    return "".join(filter(str.isprintable, text))[:longest]


def check_name(name: str) -> None:
    """Raise RefusedError unless it can be a job's."""
    if not is_job_name(name):
        shown = name[: MAX_NAME + 1]
        raise RefusedError(Cause.INVALID, f"{shown!r} is not a job name: {JOB_NAME}")


def check_number(what: str, value: int, lowest: int, highest: int) -> None:
    """Raise RefusedError unless `value` is within the two."""
    if not lowest <= value <= highest:
        raise RefusedError(Cause.INVALID, f"{what} {value} is not within {lowest} and {highest}")
