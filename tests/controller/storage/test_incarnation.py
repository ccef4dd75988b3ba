# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from p4reduce_controller.storage.incarnation import AHEAD, EPOCH, LAST, Incarnations, Reserve


def test_ids_grow_in_one_life_and_over_many(tmp_path: Path) -> None:
    def clock() -> float:
        return EPOCH + 100.0

    first = Incarnations(tmp_path, clock)
    ids = [first.next() for _ in range(20)]
    ids += [Incarnations(tmp_path, clock).next() for _ in range(20)]
    assert ids == list(range(800, 840))


def test_a_clock_set_back_does_not_bring_ids_back(tmp_path: Path) -> None:
    before = Incarnations(tmp_path, lambda: EPOCH + 1000.0).next()
    assert Incarnations(tmp_path, lambda: EPOCH - 5.0).next() == before + 1


def test_a_lost_file_does_not_bring_ids_back(tmp_path: Path) -> None:
    now = EPOCH + 1000.0
    life = Incarnations(tmp_path, lambda: now)
    last = [life.next() for _ in range(40)][-1]
    (tmp_path / "incarnation").unlink()
    now += 5.0  # 40 jobs took their time
    assert Incarnations(tmp_path, lambda: now).next() > last


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text("seven")
    with pytest.raises(ValueError, match="incarnation should hold a number, not 'seven'"):
        Incarnations(tmp_path)


def test_other_bytes_than_ascii_are_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_bytes(b"\xff\xfe7\n")
    with pytest.raises(ValueError, match=r"/incarnation should hold a number, not"):
        Incarnations(tmp_path)


def test_a_full_disk_is_told_of_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ids = Incarnations(tmp_path)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/incarnation'"):
        ids.next()


def test_ids_never_wrap(tmp_path: Path) -> None:
    (tmp_path / "incarnation").write_text(f"{LAST}")
    with pytest.raises(OverflowError, match="used up"):
        Incarnations(tmp_path).next()


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Incarnations(tmp_path / "file" / "directory")


def _take(directory: Path, count: int, results: multiprocessing.SimpleQueue[list[int]]) -> None:
    results.put([Incarnations(directory).next() for _ in range(count)])


def test_controllers_that_share_a_directory_share_no_id(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=_take, args=(tmp_path, 50, results)) for _ in range(2)]
    for process in processes:
        process.start()
    ids = results.get() + results.get()
    for process in processes:
        process.join(timeout=30)
    assert len(set(ids)) == 100


class SlowDisk:
    """Gives out ids one after the other, each when it may."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(AHEAD)
        self.last = 0
        self.error: OSError | None = None

    def take(self) -> int:
        assert self.may.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        self.last += 1
        return self.last


def test_nobody_waits_for_a_flush_while_ids_are_on_disk() -> None:
    disk = SlowDisk()
    reserve = Reserve(disk.take)
    # The disk does not answer from here on, and this would never return.
    assert [reserve.next() for _ in range(AHEAD)] == list(range(1, AHEAD + 1))
    with ThreadPoolExecutor(1) as other:
        further = other.submit(reserve.next)
        assert not wait([further], 0.1).done  # it is not told before it is on disk
        disk.may.release(1 + AHEAD)
        assert further.result(60) == AHEAD + 1
    reserve.close()


def test_an_error_that_has_passed_refuses_nobody() -> None:
    disk = SlowDisk()
    disk.may.release(100)
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reserve = Reserve(disk.take)
    with pytest.raises(OSError, match="No space left"):
        reserve.next()
    disk.error = None
    ids = [reserve.next() for _ in range(5)]
    assert ids == sorted(set(ids))
    reserve.close()
