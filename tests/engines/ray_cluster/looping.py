# SPDX-License-Identifier: Apache-2.0
"""A training that sums until it is told to end: what test_ray.py kills parts of.

    python looping.py DIRECTORY FAILURES [SUICIDE]

Rank 0 writes DIRECTORY/begun after the first sums and ends after DIRECTORY/end is there. With
SUICIDE rank 1 of the first start kills itself. Each rank writes what ended it to DIRECTORY.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
from p4reduce.ray import P4ReduceConfig, report
from ray.train.torch import TorchTrainer


def train(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    directory = Path(config["directory"])
    rank, size = dist.get_rank(), dist.get_world_size()
    again = ray.train.get_checkpoint() is not None
    step, going = 0, True
    if again:
        (directory / f"again-{rank}").touch()
    try:
        while going:
            ones = torch.ones(1000)
            dist.all_reduce(ones)
            assert ones.tolist() == [size] * 1000
            step += 1
            if step == 5 and not again:
                mine = None
                with tempfile.TemporaryDirectory() as empty:
                    if rank == 0:
                        (Path(empty) / "step").write_text("5")
                        mine = ray.train.Checkpoint.from_directory(empty)
                    report({"step": step}, checkpoint=mine)
                if rank == 0:
                    (directory / "begun").touch()
            if config["suicide"] and rank == 1 and step > 5 and not again and kept(directory):
                os.kill(os.getpid(), signal.SIGKILL)
            end = torch.tensor([float(rank == 0 and (directory / "end").exists())])
            dist.all_reduce(end)
            going = not end.item()
    except BaseException as error:
        (directory / f"error-{rank}").write_text(f"{type(error).__name__}: {error}")
        raise
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "step").write_text(str(step))
        mine = ray.train.Checkpoint.from_directory(empty) if rank == 0 else None
        report({"step": step, "again": again, "size": size}, checkpoint=mine)


def kept(directory: Path) -> bool:
    """Whether Ray has the checkpoint, from which it would start again."""
    return any(directory.rglob("checkpoint_manager_snapshot.json"))


def main() -> None:
    directory, failures = sys.argv[1], int(sys.argv[2])
    trainer = TorchTrainer(
        train,
        train_loop_config={"directory": directory, "suicide": "suicide" in sys.argv},
        torch_config=P4ReduceConfig(lease=0.0 if failures else 45.0),
        scaling_config=ray.train.ScalingConfig(num_workers=4),
        run_config=ray.train.RunConfig(
            storage_path=f"{directory}/results",
            failure_config=ray.train.FailureConfig(max_failures=failures),
        ),
    )
    print("trained", trainer.fit().metrics)


if __name__ == "__main__":
    main()
