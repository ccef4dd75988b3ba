# SPDX-License-Identifier: Apache-2.0
"""Measures the steps of a user's training script by running a few of them.

As a module this is what runs the script, in a process of its own: ``python -m
p4reduce_lab.planning.profile REPORT STEPS SCRIPT [ARGUMENT…]``. It watches PyTorch's optimisers and
the moments at which gradients are there, by hooks that PyTorch has for that, and ends the script
after the given number of steps. The script sees a job of one rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from p4reduce.wire.format import PAYLOAD_BYTES

from p4reduce_lab.errors import ArgumentsError, LabError, UnavailableError
from p4reduce_lab.planning.framing import NUMBER_BYTES
from p4reduce_lab.planning.training import TrainingStep

STEPS = 5
TIMEOUT = 600.0  # seconds
WARM_UP = 2  # first steps that are not counted: memory is allocated, kernels are chosen
BLOCK = PAYLOAD_BYTES // NUMBER_BYTES

_MISSING = "missing"  # in a report: why there is no PyTorch


@dataclass(frozen=True)
class Profile:
    """The measurements of a script.

    Attributes:
        compute: seconds of a step, the median.
        steps: that were measured.
        sizes: elements of each parameter, in the order in which their gradients come.
        ready: when each is there, as a share of a step.
        density: the share of blocks of 256 gradients that are not all zeros.
    """

    compute: float
    steps: int
    sizes: list[int]
    ready: list[float]
    density: float

    def step(self, bucket: int, batch: int = 0) -> TrainingStep:
        """Return the step with parameters in buckets of at most this many elements.

        As DistributedDataParallel does it: a bucket is there when the last of its gradients is.
        """
        buckets: list[int] = []
        ready: list[float] = []
        for size, share in zip(self.sizes, self.ready, strict=True):
            if buckets and buckets[-1] + size <= bucket:
                buckets[-1] += size
                ready[-1] = max(ready[-1], share)
            else:
                buckets.append(size)
                ready.append(share)
        return TrainingStep(self.compute, tuple(buckets), tuple(ready), batch)


def profile(script: Sequence[str], steps: int = STEPS) -> Profile:
    """Run a few steps of a training script.

    Args:
        script: its path and arguments.
        steps: to be measured, after three that are not: the first one's beginning is not seen.

    Raises:
        ArgumentsError: there is no such script, or no steps are asked for.
        UnavailableError: PyTorch is not installed.
        LabError: the script failed, took no steps or too long; says which, with its last output.
    """
    if steps < 1:
        raise ArgumentsError(f"{steps} steps to profile; at least 1 is needed")
    if not script or not Path(script[0]).is_file():
        raise ArgumentsError(f"there is no script {script[0] if script else ''!r} to profile")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "profile.json")
        command = [sys.executable, "-m", __name__, str(report), str(steps), *script]
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        alone = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        output = Path(directory, "output")
        code = _run_alone(command, {**os.environ, **alone}, output)
        if report.exists():
            found = json.loads(report.read_text())
            if _MISSING in found:
                raise UnavailableError(f"profiling a script needs PyTorch: {found[_MISSING]}")
            return Profile(**found)
        last = "\n".join(output.read_text(errors="replace").strip().splitlines()[-5:])
        taken = f"{steps + WARM_UP + 1} steps"
        if code is None:
            raise LabError(f"{script[0]} took no {taken} within {TIMEOUT:g} s:\n{last}")
        raise LabError(
            f"{script[0]} ended (exit code {code}) before a torch optimiser had taken {taken}:\n"
            f"{last}"
        )


def _run_alone(command: Sequence[str], environment: Mapping[str, str], output: Path) -> int | None:
    """Run a command, and end it with all that it has started.

    Returns its exit code, or None if it was not over within `TIMEOUT`.
    """
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _EnoughError(BaseException):
    """All steps have been watched. Not an Exception, so that no handler of the script takes it."""


class _Watch:
    """Hooks in PyTorch.

    A step lasts from the end of one optimiser's step to the end of the next one; what the hooks
    themselves take is left out.
    """

    def __init__(self, steps: int) -> None:
        self._wanted = steps + WARM_UP
        self._began: float | None = None
        self._durations: list[float] = []
        self._came: dict[int, float] = {}  # of this step, by parameter
        self._moments: dict[int, list[float]] = {}
        self._sizes: dict[int, int] = {}
        self._blocks = [0, 0]  # with something in them, all
        self._own = 0.0  # seconds of the hooks in this step

    def before(self, optimiser: Any, *_: Any) -> None:
        """An optimiser is about to take a step: look at the gradients."""
        start = time.perf_counter()
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                self._look_at(parameter)
        self._own += time.perf_counter() - start

    def after(self, *_: Any) -> None:
        """It has taken it."""
        now = time.perf_counter()
        if self._began is not None:
            duration = now - self._began - self._own
            self._durations.append(duration)
            for key, moment in self._came.items():
                share = min(max((moment - self._began) / (now - self._began), 0.0), 1.0)
                self._moments.setdefault(key, []).append(share)
            if len(self._durations) >= self._wanted:
                raise _EnoughError
        self._came.clear()
        self._own = 0.0
        self._began = time.perf_counter()

    def report(self) -> dict[str, Any]:
        """What `Profile` takes."""
        shares = {key: median(found) for key, found in self._moments.items()}
        order = sorted(shares, key=lambda key: shares[key])
        durations = self._durations[WARM_UP:]
        return {
            "compute": median(durations),
            "steps": len(durations),
            "sizes": [self._sizes[key] for key in order],
            "ready": [shares[key] for key in order],
            "density": self._blocks[0] / self._blocks[1] if self._blocks[1] else 1.0,
        }

    def _look_at(self, parameter: Any) -> None:
        key = id(parameter)
        if key not in self._sizes and parameter.requires_grad:
            self._sizes[key] = parameter.numel()
            parameter.register_post_accumulate_grad_hook(self._gradient_came)
        gradient = parameter.grad
        if gradient is None:
            return
        dense = gradient.detach()
        dense = (dense.to_dense() if dense.is_sparse else dense).cpu().reshape(-1)
        values = np.zeros(-(-dense.numel() // BLOCK) * BLOCK, np.bool_)
        values[: dense.numel()] = (dense != 0).numpy()
        blocks = values.reshape(-1, BLOCK)
        self._blocks[0] += int(np.count_nonzero(blocks.any(axis=1)))
        self._blocks[1] += len(blocks)

    def _gradient_came(self, parameter: Any) -> None:
        self._came[id(parameter)] = time.perf_counter()


def _run(report: Path, steps: int, script: Sequence[str]) -> int:
    try:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )
    except ImportError as error:
        report.write_text(json.dumps({_MISSING: f"{error} (pip install torch)"}))
        return 1
    watch = _Watch(steps)
    register_optimizer_step_pre_hook(watch.before)
    register_optimizer_step_post_hook(watch.after)
    sys.argv = list(script)
    sys.path[0] = str(Path(script[0]).resolve().parent)
    try:
        runpy.run_path(script[0], run_name="__main__")
    except _EnoughError:
        report.write_text(json.dumps(watch.report()))
        sys.stdout.flush()
        os._exit(0)  # without what the script has registered for its end, such as a long save
    return 0


if __name__ == "__main__":
    sys.exit(_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
