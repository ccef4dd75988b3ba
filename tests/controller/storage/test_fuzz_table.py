# SPDX-License-Identifier: Apache-2.0
"""The job table on disk, damaged: it is refused with a reason, or holds jobs."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest
from jobs_world import World, attach, join, make_jobs, running
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.storage.job_table import (
    FORMAT,
    JobTableHeader,
    SwitchState,
    TableError,
    assemble,
    encode_job,
    parse,
)
from p4reduce_controller.values.dataclass_json import decode, encode
from p4reduce_controller.values.token_hash import TokenHash


def some_jobs() -> list[Job]:
    jobs = make_jobs(World())
    running(jobs, "one", size=3)
    _, member = join(jobs, "two", 0, 2)
    attach(jobs, jobs.named("two"), member)
    jobs.named("two").token = TokenHash.of("correct-horse-battery")
    return jobs.all


def a_table() -> bytes:
    header = JobTableHeader(
        [SwitchState("switch", "unix:/switch", 1, 0x0A4DFFFE, 0x027034726564, 7)]
    )
    return assemble(header, map(encode_job, some_jobs()))


def test_a_jobs_token_outlives_the_controller() -> None:
    [_, job] = some_jobs()
    again = decode(Job, encode(job))
    assert again.token == job.token is not None
    assert again.token.matches("correct-horse-battery")


def accepts(data: bytes) -> bool:
    try:
        header, jobs = parse(data)
    except TableError:
        return False
    assert isinstance(header, JobTableHeader)
    assert all(isinstance(job, Job) for job in jobs)
    return True


@pytest.mark.fuzz
def test_damaged_bytes(fuzz: Any) -> None:
    """A crash or a bad disk: the checksum tells."""
    table = a_table()
    assert accepts(table)
    for _ in fuzz.rounds(500):
        data = bytearray(table)
        match fuzz.random.randrange(3):
            case 0:
                del data[fuzz.random.randrange(len(data)) :]
            case 1:
                data[fuzz.random.randrange(len(data))] ^= 1 << fuzz.random.randrange(8)
            case 2:
                data += fuzz.random.randbytes(fuzz.random.randrange(1, 20))
        assert not accepts(bytes(data))


@pytest.mark.fuzz
def test_strange_contents(fuzz: Any) -> None:
    """As another version might write them, its checksum right."""
    body = json.loads(a_table().partition(b"\n")[2])
    accepted = 0
    for _ in fuzz.rounds(500):
        content = json.loads(json.dumps(body))
        change(fuzz.random, content)
        text = json.dumps(content).encode()
        head = f"p4reduce-jobs {FORMAT} {len(text)} {hashlib.sha256(text).hexdigest()}\n"
        accepted += accepts(head.encode() + text)
    assert accepted > 0  # some changes are of one name or number for another


def change(rng: random.Random, node: Any) -> None:
    """Exchange, add or take away something somewhere."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        inner = node[key]
        if rng.random() < 0.4 or not isinstance(inner, dict | list) or not inner:
            break
        node = inner
    if rng.random() < 0.2:
        del node[key]
    else:
        values = (None, -1, 0, 7, 2**70, 0.5, "", "GATHERING", "zz", [], {}, [[]], True)
        node[key] = rng.choice(values)
