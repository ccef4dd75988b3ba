# SPDX-License-Identifier: Apache-2.0
"""Training that torchrun starts again when a rank dies, from the last checkpoint.

In one shell ``p4reduce-lab up``; in another, with what it prints in the environment:

torchrun --standalone --nproc-per-node 3 --max-restarts 3 examples/pytorch_elastic.py --kill 1

Rank 1 dies half-way, the first time. torchrun notices, ends the others and restarts all of them in
a new job on the switch. Ranks on other nodes first get an error that names rank 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def train(file: Path, doomed: int) -> float:
    """Continues from the checkpoint, if there is one, and returns the last loss."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    inputs = torch.randn(256, 20)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        first = saved["step"]
        print(f"rank {rank}: attempt {ATTEMPT} goes on from step {first}", flush=True)
    for step in range(first, STEPS):
        if ATTEMPT == 0 and rank == doomed and step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 10 == 9:
            # Beside the old one and then in its place: whoever dies now leaves one of the two.
            torch.save({"model": model.state_dict(), "step": step + 1}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
    return float(loss.item())


def main() -> None:
    """Trains, or says what is in the way, for torchrun to start again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", type=int, default=-1, help="a rank that dies half-way")
    parser.add_argument("--checkpoint", type=Path, help="a file that all ranks see")
    options = parser.parse_args()
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    file = options.checkpoint or Path(tempfile.gettempdir()) / f"p4reduce-elastic-{run}.pt"
    dist.init_process_group("p4reduce")
    try:
        loss = train(file, options.kill)
    except RuntimeError as error:
        print(f"rank {dist.get_rank()}: {error}", flush=True)
        sys.exit(1)
    print(f"rank {dist.get_rank()}: attempt {ATTEMPT} is through, loss {loss:.4f}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        file.unlink(missing_ok=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
