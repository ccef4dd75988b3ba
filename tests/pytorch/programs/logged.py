# SPDX-License-Identifier: Apache-2.0
"""Logs each step's figures to what the first argument names, and prints them as JSON."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import p4reduce
import torch
import torch.distributed as dist
from p4reduce.torch import hooks, log_statistics
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def plain(writer: Any, hook: Any, **state: Any) -> list[dict[str, float]]:
    """DDP with a hook."""
    model = DistributedDataParallel(nn.Linear(64, 512))
    model.register_comm_hook(hooks.HookState(**state), hook)
    log = log_statistics(writer)
    log.start()
    figures = []
    for step in range(STEPS):
        model.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        figures.append(log(step))
    return figures


def sum_of_step(comm: p4reduce.Communicator, loss: torch.Tensor) -> torch.Tensor:
    """Something for the switch in each step of a trainer that has one process."""
    comm.allreduce(torch.ones(1024).numpy())
    return loss


def lightning(comm: p4reduce.Communicator, writer: Any) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import LightningEnvironment

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return sum_of_step(comm, self.layer(batch).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[log_statistics(writer, comm).lightning()],
        plugins=[LightningEnvironment()],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(STEPS, 8)))


def hugging_face(comm: p4reduce.Communicator, writer: Any, directory: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": sum_of_step(comm, self.layer(inputs).square().mean())}

    arguments = TrainingArguments(
        output_dir=str(directory / f"trainer{comm.rank}"),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    data = [{"inputs": row} for row in torch.randn(STEPS, 8)]
    callbacks = [log_statistics(writer, comm).trainer()]
    Trainer(Module(), arguments, train_dataset=data, callbacks=callbacks).train()


def main() -> None:
    kind, directory = sys.argv[1], Path(sys.argv[2])
    if kind in ("lightning", "hugging_face"):
        from torch.utils.tensorboard import SummaryWriter

        with p4reduce.init() as comm:
            writer = SummaryWriter(str(directory)) if comm.rank == 0 else None
            if kind == "lightning":
                lightning(comm, writer)
            else:
                for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                    os.environ.pop(name)  # one process each, for the trainer
                hugging_face(comm, writer, directory)
            if writer is not None:
                writer.close()
        return
    dist.init_process_group("p4reduce")
    first = dist.get_rank() == 0
    writer: Any = None
    if first and kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(directory))
    elif first and kind == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{directory}/runs.db")
        mlflow.start_run()
        writer = mlflow
    figures = plain(writer, hooks.topk_hook, density=0.1)
    if kind == "tensorboard" and first:
        writer.close()
    elif kind == "mlflow" and first:
        writer.end_run()
    try:
        log_statistics(logging.getLogger())
    except TypeError as error:
        print(error)
    print(json.dumps({"figures": figures}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
