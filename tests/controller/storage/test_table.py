# SPDX-License-Identifier: Apache-2.0
"""The job table on disk: whole or not at all, whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from jobs_world import World, join, make_jobs, running
from p4reduce_controller.jobs.job import (
    Attachment,
    Job,
    JobMember,
    MemberState,
    NewPlace,
    Share,
    Succession,
)
from p4reduce_controller.jobs.job_states import JobEvent, JobState, Stage
from p4reduce_controller.jobs.refusals import Cause
from p4reduce_controller.storage import durable
from p4reduce_controller.storage.job_table import (
    JobTableHeader,
    SwitchState,
    TableError,
    TableFile,
    TableInUseError,
    assemble,
    encode_job,
    parse,
)
from p4reduce_controller.topology.switches import ONLY
from p4reduce_controller.values.dataclass_json import CodecError, decode, encode
from p4reduce_controller.values.token_hash import TokenHash

HEADER = JobTableHeader(
    [SwitchState("a", "unix:/run/switch.sock", 1, 0x0A4DFFFE, 0x027034726564, 0xFEDCBA9876543210)]
)
TRANSIENT = {"heard", "lease_ends", "waiting", "refusal", "completed", "report", "statistics"}
TRANSIENT |= {
    "presence_calls",
    "cut",
    "process",
    "latest",
    "progress",
    "silence_noticed",
    "looked_at",
}
TRANSIENT |= {"settled", "installing", "comparison", "settlement", "reformation", "final_counts"}
TRANSIENT |= {"encoded", "known_gone"}


def a_job() -> Job:
    """A job whose every field has a value that is not its default."""
    member = JobMember(
        rank=3,
        nonce=0xFFFFFFFFFFFFFFFE,
        host="größe",
        pid=7,
        host_number=9,
        heard=0.5,
        lease_ends=1.5,
        state=MemberState.LOST,
        attachment=Attachment(1, 2, 3, 4, "b"),
        switch="b",
        waiting=1,
        refusal="no",
        completed=5,
    )
    job = Job(
        name='a "job"\\',
        incarnation=0xFFFFFFFF,
        world_size=64,
        slot_count=32,
        urgent_slots=[4, 2],
        created=1e9 + 0.25,
        by_operator=True,
        secret=bytes(range(32)),
        stage=Stage.REFORMED,
        members={3: member},
        departed={1: "left"},
        tree="a",
        shares={"a": Share(range(5, 37), [2, 3], [10, 11])},
        cause=Cause.RANK_LOST,
        token=TokenHash.of("a token that is long enough"),
        successor=Succession(5, {3: NewPlace(0, 8)}, 17),
    )
    for thing in (job, member):
        for field in dataclasses.fields(thing):
            if field.name not in TRANSIENT and getattr(thing, field.name) == field.default:
                setattr(thing, field.name, another(field.name, field.default))
    return job


def another(name: str, value: Any) -> Any:
    """Another plain value of that type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}größer"
    assert isinstance(value, int | float), f"{name}: a_job() needs a value that is not its default"
    return value + 1


def as_data(value: Any) -> Any:
    return dataclasses.asdict(value)


def test_all_that_matters_comes_back() -> None:
    job = a_job()
    header, [again] = parse(assemble(HEADER, [encode_job(job)]))
    assert header == HEADER
    expected, got = as_data(job), as_data(again)
    for transient in TRANSIENT:
        for data in (expected, got, expected["members"][3], got["members"][3]):
            data.pop(transient, None)
    assert got == expected


def test_a_table_without_jobs() -> None:
    assert parse(assemble(HEADER, [])) == (HEADER, [])


def test_a_file_cut_off_anywhere_is_refused() -> None:
    data = assemble(HEADER, [encode_job(a_job())])
    for length in range(len(data)):
        with pytest.raises(TableError):
            parse(data[:length])


def test_a_file_with_any_byte_changed_is_refused() -> None:
    data = assemble(HEADER, [encode_job(a_job())])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(TableError):
            parse(bytes(changed))


def test_another_format_is_named() -> None:
    data = assemble(HEADER, []).replace(b"p4reduce-jobs 4 ", b"p4reduce-jobs 3 ", 1)
    with pytest.raises(TableError, match="it has format 3, and this version reads 4 only"):
        parse(data)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rank": "3"}, r"members\[3\].rank should be of type int"),
        ({"rank": True}, r"members\[3\].rank should be of type int"),
        ({"state": "DEAD"}, r"state should be one of JOINED"),
        ({"attachment": [1]}, "attachment should be an object"),
        ({"attachment": {"port": 1}}, "attachment: .*missing"),
    ],
)
def test_data_that_is_not_a_job(change: dict[str, Any], complaint: str) -> None:
    data = encode(a_job())
    data["members"][0][1].update(change)
    with pytest.raises(CodecError, match=complaint):
        decode(Job, data)


def test_a_field_of_a_later_version_gets_its_default() -> None:
    data = encode(a_job())
    del data["elastic"], data["token"]
    data["unknown"] = 1
    job = decode(Job, data)
    assert (job.elastic, job.token) == (False, None)


def test_a_write_that_breaks_off_at_any_byte_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = assemble(HEADER, []), assemble(HEADER, [encode_job(a_job())])
    path = tmp_path / "table"
    durable.write_durably(path, old)
    write, broke = os.write, OSError(28, "No space left on device")
    for room in range(len(new)):
        left = room

        def scarce(file: int, data: bytes) -> int:
            nonlocal left
            if not left:
                raise broke
            written = write(file, bytes(data)[:left])
            left -= written
            return written

        monkeypatch.setattr(durable.os, "write", scarce)
        with pytest.raises(OSError, match="No space"):
            durable.write_durably(path, new)
        assert path.read_bytes() == old
    monkeypatch.undo()
    # As after a crash: what was being written is still there, half of it.
    path.with_name("table.new").write_bytes(new[:100])
    assert path.read_bytes() == old
    durable.write_durably(path, new)
    assert path.read_bytes() == new
    assert path.stat().st_mode & 0o777 == 0o600


def _write_on_and_on(directory: Path, told: Any) -> None:
    file = TableFile(directory, [("switch", 1)])
    for number in range(1, 1 << 30):
        job = a_job()
        job.incarnation, job.name = number, "x" * (number % 97)
        file.write(assemble(HEADER, [encode_job(job)] * (1 + number % 50)))
        told.send(number)


def test_a_writer_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    context = multiprocessing.get_context("fork")
    for _ in range(15):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_write_on_and_on, args=(tmp_path, there))
        process.start()
        there.close()
        told = here.recv()
        time.sleep(generator.uniform(0, 0.02))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with contextlib.suppress(EOFError):
            while here.poll():
                told = here.recv()
        file = TableFile(tmp_path, [("switch", 1)])  # the lock died with its owner
        read = file.read()
        assert read is not None
        _, jobs = read
        number = jobs[0].incarnation
        assert number >= told
        assert len(jobs) == 1 + number % 50
        file.close()


def test_the_lock(tmp_path: Path) -> None:
    first = TableFile(tmp_path, [("switch", 1)])
    with pytest.raises(TableInUseError, match=rf"\(pid {os.getpid()}\) has the jobs of switch in"):
        TableFile(tmp_path, [("switch", 1)])
    TableFile(tmp_path, [("switch", 2)]).close()  # another switch's
    first.write(b"x")
    first.remove()
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == []
    second = TableFile(tmp_path, [("switch", 1)])
    assert second.read() is None
    second.close()


def test_a_damaged_file_says_what_can_be_done(tmp_path: Path) -> None:
    file = TableFile(tmp_path, [("switch", 1)])
    file.write(b"nonsense")
    with pytest.raises(
        TableError, match=r"jobs-[0-9a-f]{12} cannot be read: it is not a job table"
    ):
        file.read()
    file.close()


# -- What is restored ---------------------------------------------------------------------------


def restarted(jobs: Any) -> Any:
    """Return the jobs of a controller that follows."""
    kept = [decode(Job, encode(job)) for job in jobs.worth_keeping()]
    again = make_jobs(World(incarnation=1000))
    again.restore(kept)
    return again


def test_what_is_held_is_held_again() -> None:
    world = World()
    jobs = make_jobs(world)
    first, second = running(jobs, "a", slots=10), running(jobs, "b", slots=20)
    jobs.delete("a")
    jobs.release(first)
    third, _ = join(jobs, "c", 0, 2, slots=7)
    again = restarted(jobs)
    assert [job.name for job in again.all] == ["b", "c"]
    assert again.holdings.slots_free(ONLY) == jobs.holdings.slots_free(ONLY)
    new = running(again, "d", slots=15)
    for job in (second, third):
        assert not set(new.root.slots) & set(job.root.slots)
    assert not set(new.root.replica_ids) & set(second.root.replica_ids)
    assert not set(new.root.groups) & set(second.root.groups)
    addresses = {
        again.holdings.suggested_ip(member) for job in again.all for member in job.members.values()
    }
    assert len(addresses) == 3 + 1 + 3


def test_all_get_a_full_lease() -> None:
    world = World()
    jobs = make_jobs(world)
    running(jobs)
    world.now += 9.9
    again = restarted(jobs)
    again.expire()
    assert again.named("train").state is JobState.RUNNING


def test_what_was_half_configured_is_configured_again() -> None:
    world = World()
    jobs = make_jobs(world)
    job, member = join(jobs, "train", 0, 1)
    jobs.hello(job.incarnation, 0, member.nonce, Attachment(1, 2 << 40, 0x0A000001, 9))
    assert job.configuring
    again = restarted(jobs)
    [restored] = again.all
    assert not restored.configuring
    assert not restored.root.replica_ids
    again.resume()
    assert restored.configuring


def test_tables_that_contradict_themselves() -> None:
    world = World()
    jobs = make_jobs(world)
    job = running(jobs)
    twice = decode(Job, encode(job))
    with pytest.raises(ValueError, match="occurs twice"):
        make_jobs(World()).restore([job, twice])
    twice.incarnation += 1
    with pytest.raises(ValueError, match=r"range\(0, 32\) is not free"):
        make_jobs(World()).restore([decode(Job, encode(job)), twice])


def test_a_succession_is_kept_as_long_as_its_job() -> None:
    world = World()
    jobs = make_jobs(world)
    old, new = running(jobs, "old"), running(jobs, "new")
    jobs.fail(old, Cause.SWITCH_LOST, "x")
    jobs.release(old)
    old.step(JobEvent.REFORMED)
    old.successor = Succession(new.incarnation, {}, 0)
    for member in old.active:
        member.state = MemberState.LEFT
    assert jobs.worth_keeping() == [old, new]
    jobs.delete("new")
    assert jobs.worth_keeping() == []
