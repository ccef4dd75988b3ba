# SPDX-License-Identifier: Apache-2.0
"""What each rank of the scorecard does: all runs of a plan, one after the other, over the switch.

Between two runs the ranks meet by files, not by frames: while the counters are read, nobody sends.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import p4reduce
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce.methods._communicator import Comm, nobody
from p4reduce_lab.system import CONTROLLER_VARIABLE

from bench.methods.entries import ENTRIES
from bench.methods.tasks import tasks

TIMEOUT = 300.0  # seconds; of a sum, and of a meeting
POLL = 0.002
SLOTS = 8


class Meeting:
    """Ranks of one machine that wait for each other in a folder."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._number = 0

    def __call__(self) -> None:
        """Wait until all ranks have come here."""
        self._number += 1
        (self._folder / f"{self._number}-{self._rank}").touch()
        end = time.monotonic() + TIMEOUT
        waited_for = set(range(self._size))
        while waited_for:
            waited_for = {
                rank
                for rank in waited_for
                if not (self._folder / f"{self._number}-{rank}").exists()
            }
            if waited_for and time.monotonic() > end:
                raise SystemExit(f"ranks {sorted(waited_for)} have not come after {TIMEOUT:g} s")
            time.sleep(POLL)


class KeptOpen:
    """A rank's communicator whose groups stay open until `end`: the switch's counters of a group
    end with it."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._groups: list[Comm] = []
        self.rank, self.size, self.allreduce = comm.rank, comm.size, comm.allreduce

    def split(self, color: int | None, key: int = 0, *, slots: int | None = None) -> Comm | None:
        """As of the communicator."""
        group = self._comm.split(color, key, slots=slots)
        if group is None:
            return None
        self._groups.append(group)
        return KeptOpen(group)

    def close(self) -> None:
        """Not yet; see `end`."""

    def end(self) -> None:
        """Close all groups."""
        for group in self._groups:
            group.close()


def counters(client: ControlClient) -> dict[str, Counter[int]]:
    """Return bytes by port, up and down, of all jobs that run: the switch's own counts."""
    counts: dict[str, Counter[int]] = {"up": Counter(), "down": Counter()}
    jobs = client.call(client.stub.ListJobs, pb.ListJobsRequest()).jobs
    for job in jobs:
        if job.state != pb.RUNNING:
            continue
        answer = client.call(client.stub.GetStatistics, pb.GetStatisticsRequest(job=job.name))
        ports = {member.rank: member.port for member in answer.job.members}
        for rank in answer.ranks:
            counts["up"][ports[rank.rank]] += rank.bytes_up
            counts["down"][ports[rank.rank]] += rank.bytes_down
    return counts


def run_plan(
    seed: int, ranks: list[int], runs: list[dict[str, Any]], folder: str
) -> list[dict[str, Any]]:
    """Do all runs; return models, and of rank 0 the bytes that each rank sent and received."""
    by_name = {task.name: task for task in tasks(seed, (ranks[0], ranks[1]))}
    results: list[dict[str, Any]] = []
    with p4reduce.init(timeout=TIMEOUT, slots=SLOTS) as comm:
        client = ControlClient(os.environ[CONTROLLER_VARIABLE]) if comm.rank == 0 else None
        meet = Meeting(Path(folder), comm.rank, comm.size)
        for one in runs:
            kept = KeptOpen(comm)
            meet()
            before = counters(client) if client is not None else None
            meet()
            end = ENTRIES[one["method"]].work(kept, by_name[one["task"]], one["steps"], nobody)
            meet()
            result: dict[str, Any] = {"model": end.model.tolist()}
            if client is not None and before is not None:
                after = counters(client)
                for way in ("up", "down"):
                    moved = after[way] - before[way]
                    result[way] = list(moved.values())
            results.append(result)
            meet()
            kept.end()
        if client is not None:
            client.close()
    return results
