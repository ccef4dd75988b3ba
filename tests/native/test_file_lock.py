# SPDX-License-Identifier: Apache-2.0
"""Everything that locks a file, on a file system without locks: it goes on, with a warning."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from p4reduce_controller.storage.incarnation import Incarnations
from p4reduce_controller.storage.job_table import TableFile
from p4reduce_lab.errors import LabError
from p4reduce_lab.lab import stop_lab
from p4reduce_lab.processes.rundir import results_directory
from p4reduce_native.cache import Cache
from p4reduce_native.file_lock import lock_file
from p4reduce_switch.cores.directory import socket_directory

WITHOUT_LOCKS = [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EIO]


@pytest.fixture(params=WITHOUT_LOCKS, ids=errno.errorcode.get)
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on Lustre and on NFS without its lock daemon; the reason."""
    reason = os.strerror(request.param)

    def flock(descriptor: int, how: int) -> None:
        raise OSError(request.param, reason)

    monkeypatch.setattr(fcntl, "flock", flock)
    return reason


def no_pause(seconds: float) -> None:
    raise AssertionError("there is nothing to wait for")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EACCES])
def test_another_process_has_it(
    monkeypatch: pytest.MonkeyPatch, opened: int, tmp_path: Path, code: int
) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(BlockingIOError, match="another process holds it"):
        lock_file(opened, tmp_path / "file")


def test_there_are_no_locks(
    without_locks: str, opened: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not lock_file(opened, tmp_path / "file")
    assert not lock_file(opened, tmp_path / "file", wait=True)
    [warning] = caplog.messages
    assert f"files in {tmp_path} cannot be locked ({without_locks})" in warning


def test_machine_code_is_compiled_at_once(
    without_locks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", no_pause)
    with Cache(tmp_path / "cache").lock("answer", timeout_s=180.0):
        pass


def test_a_controller_has_its_jobs_and_ids(
    without_locks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        table = TableFile(tmp_path, [("switch", 1)])
        table.write(b"x")
        table.remove()
    numbers = Incarnations(tmp_path)
    assert numbers.next() < numbers.next()
    assert len(caplog.messages) == 1


def test_the_lab_writes_its_results(without_locks: str, tmp_path: Path) -> None:
    with results_directory(tmp_path, replace=()):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_lab_is_not_ended_by_a_pid_that_may_be_old(without_locks: str, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(f"{os.getpid()}\n")
    with pytest.raises(LabError, match="cannot be locked: end the lab where it is up"):
        stop_lab(tmp_path)


def test_the_directory_of_a_switch_that_may_run_stays(without_locks: str, tmp_path: Path) -> None:
    with socket_directory(tmp_path) as used:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(used / "core0.sock"))
        with socket_directory(tmp_path) as other:
            assert used.exists()
            assert other != used
        listener.close()
    assert not used.exists()
