# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped: an error that names them on all others, and a clean end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

MODES = ("backend", "hook", "delegated", "queued")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_rank_is_named_by_all_others(
    mode: str, system: TorchSystem, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    draw = random.Random(seed)
    victim = draw.randrange(3)
    ranks = Ranks(system, 3, ["training.py", mode], tmp_path / "ranks")
    try:
        for rank in range(3):
            ranks.wait_for(rank, "step 3")
        time.sleep(draw.random())
        ranks.processes[victim].send_signal(signal.SIGKILL)
        ended = ranks.wait()
    finally:
        ranks.kill()
    for rank, one in enumerate(ended):
        if rank == victim:
            continue
        # 0: no signal, no abort at the interpreter's exit, and nothing hung.
        assert one.code == 0, f"rank {rank}: {one.code}\n{one.log[-3000:]}"
        assert one.lines[-1] == "destroyed"
        (record,) = one.records
        assert record["runtime"], record
        assert f"rank {victim}" in record["text"], record


@pytest.mark.timeout(300)
def test_a_stopped_rank_is_named_by_all_others(system: TorchSystem, tmp_path: Path) -> None:
    ranks = Ranks(system, 3, ["training.py", "delegated"], tmp_path / "ranks")
    try:
        for rank in range(3):
            ranks.wait_for(rank, "step 3")
        ranks.processes[1].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            ranks.wait_for(rank, "destroyed")
        (record,) = ranks.ended(0).records
        assert "rank 1" in record["text"], record
    finally:
        ranks.processes[1].send_signal(signal.SIGCONT)
        ranks.kill()
