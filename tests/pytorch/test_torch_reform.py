# SPDX-License-Identifier: Apache-2.0
"""`p4reduce.torch.reform`: ranks that continue without a lost one, and let it in again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from p4reduce_common.threads import new_thread
from torch_system import DEADLINE, EXAMPLES, TorchSystem, free_port

pytest.importorskip("torch")


class Rank:
    """A process of the example, and what it has said."""

    def __init__(self, environment: Mapping[str, str], *arguments: str) -> None:
        command = [sys.executable, "-u", str(EXAMPLES / "pytorch_reform.py"), *arguments]
        self.said = ""
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = new_thread(self._read, "rank")
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def until(self, pattern: str) -> None:
        """Wait until it has said something."""
        deadline = time.monotonic() + DEADLINE
        while not re.search(pattern, self.said):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, f"no {pattern!r} in: {self.said}"
            time.sleep(0.02)

    def end(self) -> str:
        """Wait for its end, and return all that it has said."""
        assert self.process.wait(DEADLINE) == 0, self.said
        self._reader.join(DEADLINE)
        return self.said


def started(system: TorchSystem, size: int, *arguments: str) -> tuple[list[Rank], dict[str, str]]:
    """Start the ranks. Also return the environment of one that comes back."""
    environment = {**os.environ, **system.variables, "OMP_NUM_THREADS": "1"}
    environment["P4REDUCE_JOB"] = f"reform-{time.monotonic_ns()}"
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    places = [{"RANK": str(rank), "WORLD_SIZE": str(size)} for rank in range(size)]
    return [Rank({**environment, **meeting, **place}, *arguments) for place in places], environment


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_continue_and_the_lost_rank_comes_back(victim: int, system: TorchSystem) -> None:
    ranks, environment = started(system, 3, "--steps", "1000000", "--pause", "0.05")
    survivors = [rank for number, rank in enumerate(ranks) if number != victim]
    try:
        ranks[victim].until(r"step 12,")
        ranks[victim].process.kill()
        for number, rank in enumerate(survivors):
            rank.until(rf"rank \d of 3: p4reduce: .*rank {victim} .*lost")
            rank.until(rf"rank {number} of 2: step")
        back = Rank(environment, "--back", "--steps", "1000000", "--pause", "0.05")
        ranks.append(back)
        back.until("rank 2 of 3: step")
        for number, rank in enumerate(survivors):
            rank.until(rf"rank {number} of 2: step(.*\n)*.*rank {number} of 3: step")
        # Again, now that numbers are no longer those of the ports.
        survivors[0].process.kill()
        survivors[1].until("rank 0 of 2: step")
        back.until("rank 1 of 2: step")
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def test_ranks_of_a_network_that_they_started_continue(tmp_path: Path) -> None:
    unnamed = {name: text for name, text in os.environ.items() if not name.startswith("P4REDUCE_")}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        Rank({**unnamed, **meeting, "RANK": str(rank), "WORLD_SIZE": "3"}, "--steps", "300")
        for rank in range(3)
    ]
    try:
        ranks[0].until("step 5,")
        ranks[0].process.kill()
        for number, rank in enumerate(ranks[1:]):
            rank.until(rf"rank {number} of 2: step")
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


REFUSALS = """
import p4reduce.torch, torch, torch.distributed as dist
try:
    p4reduce.torch.reform(timeout=-1)
except ValueError as error:
    print(f"1 {error}")
try:
    p4reduce.torch.reform("world")
except ValueError as error:
    print(f"2 {error}")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
try:
    p4reduce.torch.reform()
except ValueError as error:
    print(f"3 {error}")
"""


def test_refusals_name_the_value() -> None:
    command = [sys.executable, "-c", REFUSALS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    first, second, third = done.stdout.splitlines()
    assert "-1" in first
    assert "'world'" in second
    assert "'p4reduce'" in third


def test_without_torchft_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['torchft'] = None; import p4reduce.torch.ft"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert "pip install 'p4reduce[torchft]'" in done.stderr.splitlines()[-1]
