# SPDX-License-Identifier: Apache-2.0
"""Tokens: a job's token permits to join and delete it, and the operator's to delete any job.

They are long random strings, so guessing needs no further defence.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from p4reduce_common.files import named
from p4reduce_native.files import read_file

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.refusals import Cause, JobRefusedError
from p4reduce_controller.values.token_hash import TokenHash

SHORTEST, LONGEST = 16, 200  # characters
OPERATOR_FILE = "operator.token"


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def hash_given(token: str) -> TokenHash | None:
    """Return the hash of a new job's token; None if it has no token. Raises JobRefusedError."""
    if not token:
        return None
    if not (SHORTEST <= len(token) <= LONGEST and token.isascii() and token.isprintable()):
        # Without the token itself: errors end up in logs.
        raise JobRefusedError(
            Cause.INVALID,
            f"a token has {SHORTEST} to {LONGEST} printable ASCII characters; that one has "
            f"{len(token)}, or others",
        )
    return TokenHash.of(token)


def check_join(job: Job, token: str) -> None:
    """Raise JobRefusedError unless `token` permits to join `job`."""
    if job.token is None:
        if token:
            # Somebody else may have made it, and would share the sums.
            raise JobRefusedError(
                Cause.WRONG_TOKEN,
                f"job {job.name!r} was made without a token; a rank with one does not join it",
            )
    elif not job.token.matches(token):
        raise _refusal(job, token, "joining")


def check_delete(job: Job, token: str, operator: TokenHash) -> None:
    """Raise JobRefusedError unless `token` permits to end `job`. It may be empty."""
    if job.token is None or job.token.matches(token) or operator.matches(token):
        return
    raise _refusal(job, token, "deleting")


def _refusal(job: Job, token: str, what: str) -> JobRefusedError:
    why = "that is not the right one" if token else "none was given"
    return JobRefusedError(
        Cause.WRONG_TOKEN, f"{what} job {job.name!r} requires a token, and {why}"
    )


def operator_token(directory: Path) -> TokenHash:
    """Return the hash of the operator's token in `directory`. It is created if it is missing.

    Controllers that share the directory share the token. Raises OSError, and ValueError if other
    users can read the file.
    """
    path = directory / OPERATOR_FILE
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = directory / f".{OPERATOR_FILE}.{os.getpid()}"
    descriptor = os.open(beside, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        with named(path), os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(new_token() + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)  # whole or not at all, and never over an older one
    finally:
        beside.unlink()
    token = read_operator_token(directory)
    if token is None:
        raise ValueError(f"{path} is not readable by its owner alone, or empty; remove it")
    return TokenHash.of(token)


def read_operator_token(directory: Path) -> str | None:
    """Return the operator's token if the file exists and only this user can read it."""
    try:
        data, mode = read_file(directory / OPERATOR_FILE, LONGEST + 1)
        token = data.decode("ascii").strip()
    except (OSError, ValueError):
        return None
    private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
    return token if private and len(token) >= SHORTEST else None
