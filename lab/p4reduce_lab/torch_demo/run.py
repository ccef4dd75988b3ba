# SPDX-License-Identifier: Apache-2.0
"""``make run FRAMEWORK=torch``: trains over the switch, then over Gloo, and compares."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.demo.run import REPLACED
from p4reduce_lab.demo.training.data import load_digits
from p4reduce_lab.errors import LabError
from p4reduce_lab.execute import execute
from p4reduce_lab.processes.rundir import results_directory
from p4reduce_lab.topology import LabTopology

STEPS = 150
BATCH = 32  # images of each rank in a step
SUMMARY_FILE = "torch-summary.json"
TOLERANCE = 0.005  # of accuracy, between switch and Gloo


@dataclass(frozen=True)
class TorchRun:
    """The result of one training.

    Attributes:
        backend: "p4reduce" or "gloo".
        accuracy: on images that were not trained on, 0 to 1.
        steps_per_second: of training, all communication included.
        bytes_a_rank: what rank 0 sent while training: whole frames to the switch, and TCP payload.
        waiting_share: how much longer a step takes than one without communication, as a share of
            the step: medians.
        parameters: of the network.
        same_weights: whether all ranks have the same bits in the end.
    """

    backend: str
    accuracy: float
    steps_per_second: float
    bytes_a_rank: int
    waiting_share: float
    parameters: int
    same_weights: bool


def run_torch_demo(
    topology: LabTopology,
    steps: int | None,
    seed: int | None,
    compression: str,
    choice: LabChoice,
    output: Path,
) -> list[TorchRun]:
    """Train twice with the same seeds, over these switches.

    Raises:
        LabError: torch is missing, or a rank failed. `problems` compares the results.
    """
    if importlib.util.find_spec("torch") is None:
        raise LabError("FRAMEWORK=torch needs PyTorch: pip install 'p4reduce[torch]'")
    with results_directory(output, replace=REPLACED):
        # The live page shows a switch, which Gloo does not use.
        runs = [
            _train(backend, topology, steps, seed, compression, used, output)
            for backend, used in (("p4reduce", choice), ("gloo", replace(choice, web=False)))
        ]
        summary = [asdict(one) for one in runs]
        (output / SUMMARY_FILE).write_text(json.dumps(summary, indent=2))
    return runs


def _train(
    backend: str,
    topology: LabTopology,
    steps: int | None,
    seed: int | None,
    compression: str,
    choice: LabChoice,
    output: Path,
) -> TorchRun:
    data, result = (output / "torch-digits.npz").absolute(), output / f"torch-{backend}.json"
    load_digits(seed or 0).save(data)
    command = [sys.executable, "-m", "p4reduce_lab.torch_demo.train", backend]
    command += ["--data", str(data), "--result", str(result.absolute())]
    command += ["--steps", str(steps or STEPS), "--batch", str(BATCH), "--seed", str(seed or 0)]
    command += ["--compression", compression]
    print(f"Training over {backend}: {topology.ranks} ranks, which load PyTorch first.", flush=True)
    code = execute(command, topology, choice)
    if code:
        raise LabError(f"training with {backend} ended with exit code {code}")
    read: dict[str, Any] = json.loads(result.read_text())
    return TorchRun(**read)


def lines(runs: list[TorchRun]) -> list[str]:
    """Return the comparison as lines for people."""
    rows = [
        ("", *(run.backend for run in runs)),
        ("accuracy", *(f"{run.accuracy:.2%}" for run in runs)),
        ("steps/s", *(f"{run.steps_per_second:.1f}" for run in runs)),
        ("bytes per rank", *(f"{run.bytes_a_rank:,}" for run in runs)),
        ("waiting, of a step", *(f"{run.waiting_share:.0%}" for run in runs)),
        ("same weights", *("yes" if run.same_weights else "NO" for run in runs)),
    ]
    return [f"{name:<22}" + "".join(f"{cell:>14}" for cell in cells) for name, *cells in rows]


def problems(runs: list[TorchRun], compression: str) -> list[str]:
    """Return what is wrong."""
    found = [
        f"the ranks' weights differ with {run.backend}" for run in runs if not run.same_weights
    ]
    apart = abs(runs[0].accuracy - runs[1].accuracy)
    if compression == "none" and apart > TOLERANCE:
        most = f"at most {TOLERANCE * 100:g} are allowed"
        found.append(f"the accuracies are {apart * 100:.2f} points apart; {most}")
    return found
