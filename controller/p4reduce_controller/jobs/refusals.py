# SPDX-License-Identifier: Apache-2.0
"""Why a request cannot be granted, or why a job is over."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """The kind of a refusal, or of a job's end. The gRPC service translates it into a status."""

    INVALID = enum.auto()
    TAKEN = enum.auto()  # by another process, such as a rank or a name
    EXHAUSTED = enum.auto()  # no slots, groups or the like are left
    UNKNOWN = enum.auto()
    WRONG_NONCE = enum.auto()
    WRONG_TOKEN = enum.auto()
    WRONG_STATE = enum.auto()
    OUT = enum.auto()  # the rank is out of the job, for good
    SWITCH_REFUSED = enum.auto()
    SWITCH_LOST = enum.auto()
    RANK_LOST = enum.auto()
    DELETED = enum.auto()
    SHUTDOWN = enum.auto()
    NO_INCARNATION = enum.auto()  # no new number of an incarnation could be written to disk
    NOT_KEPT = enum.auto()  # the job table cannot be written


class JobRefusedError(Exception):
    """A request that cannot be granted."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
