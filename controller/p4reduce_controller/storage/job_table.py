# SPDX-License-Identifier: Apache-2.0
"""The job table on disk: what the controller has to know after a crash to go on.

A file a controller, in the state directory: a line with the format's number, the length and the
SHA-256 of what follows; then JSON. Each version is written beside the last one, flushed, and
renamed over it, so that a crash at any byte leaves the one or the other. It holds nonces and
secrets, so only this user may read it. Which fields of a job are kept, jobs/job.py says: all that
are not TRANSIENT. Beside it is a lock, held as long as a controller lives.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.storage.durable import write_durably
from p4reduce_controller.values.dataclass_json import CodecError, decode, encode

FORMAT = 4
_MAGIC = "p4reduce-jobs"


class TableError(Exception):
    """The table cannot be used; the message says why, and what can be done."""


class TableInUseError(TableError):
    """Another controller uses it."""


@dataclass(frozen=True)
class SwitchState:
    """What is about one of the switches."""

    name: str
    address: str  # of its P4Runtime server
    device_id: int
    ip: int
    mac: int
    cookie: int | None  # of the pipeline that the jobs' entries are in


@dataclass(frozen=True)
class Header:
    """What is about all jobs."""

    switches: list[SwitchState]


def encode_job(job: Job) -> str:
    """Return a job as it stands in the file."""
    return json.dumps(encode(job), separators=(",", ":"))


def assemble(header: Header, jobs: Iterable[str]) -> bytes:
    """Return the file's contents; the jobs are encoded already."""
    head = json.dumps(encode(header), separators=(",", ":"))
    body = f'{{"header":{head},"jobs":[\n' + ",\n".join(jobs) + "\n]}\n"
    data = body.encode()
    digest = hashlib.sha256(data).hexdigest()
    return f"{_MAGIC} {FORMAT} {len(data)} {digest}\n".encode() + data


def parse(data: bytes) -> tuple[Header, list[Job]]:
    """Return what a file holds. Raises TableError where that is not what was once written."""
    first, newline, body = data.partition(b"\n")
    words = first.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 4 or words[0] != _MAGIC:
        raise TableError("it is not a job table, or cut off")
    if words[1] != str(FORMAT):
        raise TableError(f"it has format {words[1]}, and this version reads {FORMAT} only")
    if words[2:] != [str(len(body)), hashlib.sha256(body).hexdigest()]:
        raise TableError("it is damaged: length or checksum is not as it was written")
    try:
        content: Any = json.loads(body)
        header = decode(Header, content["header"])
        return header, [decode(Job, job, "job") for job in content["jobs"]]
    except (CodecError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"it does not hold what it should: {error}") from None


class TableFile:
    """The file of a controller in `directory`, locked for this process until `close`.

    It is known by its switches: (address, device id) of each. Raises TableInUseError, and OSError
    where the directory cannot be written.
    """

    def __init__(self, directory: Path, switches: Sequence[tuple[str, int]]) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Addresses may be longer than names of files.
        names = " ".join(f"{device_id} {address}" for address, device_id in sorted(switches))
        key = hashlib.sha256(names.encode()).hexdigest()[:12]
        self.path = directory / f"jobs-{key}"
        self._lock_path = directory / f"jobs-{key}.lock"
        self._lock: int | None = self._take_lock(", ".join(address for address, _ in switches))

    def _take_lock(self, switches: str) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
                os.close(lock)
                raise TableInUseError(
                    f"another controller (pid {owner or 'unknown'}) has the jobs of {switches} in "
                    f"{self._lock_path.parent}"
                ) from None
            if _is_at(lock, self._lock_path):
                break
            os.close(lock)  # its last owner removed it while we opened it
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def remove(self) -> None:
        """Leave nothing behind, as there are no jobs; then as `close`."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let another controller have it. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> tuple[Header, list[Job]] | None:
        """Return what was written last; None if nothing ever was.

        Raises TableError, and OSError.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return parse(data)
        except TableError as error:
            raise TableError(
                f"the job table {self.path} cannot be read: {error}. Without it (move it away) the "
                "controller starts afresh, and jobs that run on the switch end"
            ) from None

    def write(self, data: bytes) -> None:
        """Replace the contents. Raises OSError; they are as they were then."""
        write_durably(self.path, data)


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
