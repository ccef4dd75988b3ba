# SPDX-License-Identifier: Apache-2.0
"""From `TorchTrainer.fit()` to the end of the first step, with p4reduce and with Gloo in turns.

Both train the same model on one Ray cluster, which runs before. The first turn of each fills
caches and does not count.

    python -m bench.ray.first_step [--turns 5] [--workers 2] [--docs]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
from p4reduce.ray import P4ReduceConfig
from ray.train.torch import TorchConfig, TorchTrainer

from bench.in_docs import DOCS, put_table
from bench.machine import describe, machine

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
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--docs", action="store_true", help="update docs/ray.md")
    options = parser.parse_args()
    print(describe(machine()))
    ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as storage:
        for turn in range(options.turns + 1):
            for way in WAYS if turn % 2 else reversed(WAYS):
                took = seconds(way, options.workers, storage)
                if turn:
                    times[way].append(took)
                print(f"turn {turn}, {way}: {took:.2f} s", flush=True)
    rows = [
        [way, f"{statistics.median(of):.1f}", f"{min(of):.1f}", f"{max(of):.1f}"]
        for way, of in times.items()
    ]
    more = [own - gloo for own, gloo in zip(times["p4reduce"], times["Gloo"], strict=True)]
    rows.append(
        ["p4reduce more, in the same turn", f"{statistics.median(more):.1f}", f"{min(more):.1f}",
         f"{max(more):.1f}"]
    )  # fmt: skip
    for line in (HEAD, *rows):
        print("  ".join(line))
    if options.docs:
        put_table("ray-first-step", HEAD, rows, DOCS / "ray.md")


if __name__ == "__main__":
    main()
