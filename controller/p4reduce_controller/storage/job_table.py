# SPDX-License-Identifier: Apache-2.0
"""The job table on disk: what the next controller needs to continue after a crash.

Each controller has one file in the state directory. The first line has a magic word, the format's
number, and length and SHA-256 of the JSON that follows. Each version is written beside the last
one, flushed, and renamed over it, so a crash at any byte leaves one or the other. The file holds
nonces and secrets, so only this user may read it. It has all fields of a job that are not TRANSIENT
(jobs/job.py). A lock beside it is held as long as the controller runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_native.file_lock import lock_file

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.storage.durable import write_durably
from p4reduce_controller.values.dataclass_json import CodecError, decode, encode

FORMAT = 4
_MAGIC = "p4reduce-jobs"


class TableError(Exception):
    """The job table cannot be used. The message says why, and what to do."""


class TableInUseError(TableError):
    """Another controller uses the job table."""


@dataclass(frozen=True)
class SwitchState:
    """The part of the table about one switch."""

    name: str
    address: str  # of its P4Runtime server
    device_id: int
    ip: int
    mac: int
    cookie: int | None  # of the pipeline that the jobs' entries are in


@dataclass(frozen=True)
class JobTableHeader:
    """The part of the table before the jobs: the switches."""

    switches: list[SwitchState]


def encode_job(job: Job) -> str:
    """Return a job as the file holds it."""
    return json.dumps(encode(job), separators=(",", ":"))


def assemble(header: JobTableHeader, jobs: Iterable[str]) -> bytes:
    """Return the file's contents from encoded jobs."""
    head = json.dumps(encode(header), separators=(",", ":"))
    body = f'{{"header":{head},"jobs":[\n' + ",\n".join(jobs) + "\n]}\n"
    data = body.encode()
    digest = hashlib.sha256(data).hexdigest()
    return f"{_MAGIC} {FORMAT} {len(data)} {digest}\n".encode() + data


def parse(data: bytes) -> tuple[JobTableHeader, list[Job]]:
    """Return the contents of a file. Raises TableError if it is damaged."""
    first, newline, body = data.partition(b"\n")
    words = first.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 4 or words[0] != _MAGIC:
        raise TableError("it is not a job table, or cut off")
    if words[1] != str(FORMAT):
        raise TableError(f"it has format {words[1]}, and this version reads {FORMAT} only")
    if words[2:] != [str(len(body)), hashlib.sha256(body).hexdigest()]:
        raise TableError("it is damaged: length or checksum is wrong")
    try:
        content: Any = json.loads(body)
        header = decode(JobTableHeader, content["header"])
        return header, [decode(Job, job, "job") for job in content["jobs"]]
    except (CodecError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"it does not hold what it should: {error}") from None


class TableFile:
    """The file of a controller in `directory`, locked for this process until `close`.

    Its name is made from its switches: address and device id of each. Raises TableInUseError, and
    OSError if the directory cannot be written.
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
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                lock_file(descriptor, self._lock_path)
            except BlockingIOError:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise TableInUseError(
                    f"another controller (pid {owner or 'unknown'}) has the jobs of {switches} in "
                    f"{self._lock_path.parent}"
                ) from None
            if _is_at(descriptor, self._lock_path):
                break
            os.close(descriptor)  # its last owner removed it while we opened it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def remove(self) -> None:
        """Delete the file, because there are no jobs; then `close`."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock for another controller. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> tuple[JobTableHeader, list[Job]] | None:
        """Return what was written last; None if nothing was.

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
        """Replace the contents. Raises OSError, and the former contents stay."""
        write_durably(self.path, data)


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
