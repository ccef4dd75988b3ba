# SPDX-License-Identifier: Apache-2.0
"""From `TorchTrainer.fit()` to the end of the first step, with p4reduce and with Gloo in turns.

Both train the same model on one Ray cluster, which runs before. The first turn of each fills
caches and does not count.

    python -m bench.ray.first_step [--turns 5] [--workers 2] [--docs]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train
from p4reduce.ray import P4ReduceConfig
from p4reduce_lab.measured.machine import describe, machine
from ray.train.torch import TorchConfig, TorchTrainer

from bench.measure import in_turns, there_and_back
from bench.pages import DOCS
from bench.program import read_options, run, tell_table

WAYS = {"Gloo": lambda: TorchConfig(backend="gloo"), "p4reduce": P4ReduceConfig}
HEAD = ("", "seconds to the end of the first step: median", "least", "most")


def train(config: dict[str, Any]) -> None:
    """One step of a small network; rank 0 writes the seconds since `config["begun"]` to a file.

    Ray Train keeps no metrics of a report without a checkpoint.
    """
    import torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(64, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 64)).sum().backward()
    optimiser.step()
    took = time.time() - config["begun"]
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["told"]).write_text(str(took))


def seconds(way: str, workers: int, storage: str) -> float:
    """Run one training."""
    share = min(1.0, ray.cluster_resources()["CPU"] / workers)
    told = Path(storage) / "seconds"
    trainer = TorchTrainer(
        train,
        train_loop_config={"begun": time.time(), "told": str(told)},
        torch_config=WAYS[way](),
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": share}
        ),
        run_config=ray.train.RunConfig(storage_path=storage),
    )
    trainer.fit()
    took = float(told.read_text())
    told.unlink()
    print(f"{way}: {took:.2f} s", flush=True)
    return took


def main() -> None:
    options = read_options(__doc__, to_json=False, docs="docs/ray.md", turns=5, workers=2)
    print(describe(machine()))
    ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    with tempfile.TemporaryDirectory() as storage:
        ways = {way: partial(seconds, way, options.workers, storage) for way in WAYS}
        times = in_turns(ways, options.turns, warm_up=1, order=there_and_back)
    more = [own - gloo for own, gloo in zip(times["p4reduce"], times["Gloo"], strict=True)]
    cells = [
        [way, *(f"{of(each):.1f}" for of in (statistics.median, min, max))]
        for way, each in {**times, "p4reduce more, in the same turn": more}.items()
    ]
    tell_table(options, DOCS / "ray.md", "ray-first-step", HEAD, cells)


if __name__ == "__main__":
    run(main)
