# SPDX-License-Identifier: Apache-2.0
"""A wheel of p4reduce in environments that others fill: nothing is downgraded, and a job runs.

These tests fetch packages (some gigabytes) and take minutes: `make test-install`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.install,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not os.environ.get("P4REDUCE_TEST_INSTALL"),
        reason="fetches gigabytes: run it by make test-install",
    ),
]

ROOT = Path(__file__).parents[2]
OTHERS = [
    "torch==2.13.0",
    "ray",
    "pyspark",
    "mpi4py",
    "ipython",
    "jupyterlab",
    "tensorboard",
    "mlflow",
    "wandb",
    "onnx",
]
IMPORTS = (
    "p4reduce, p4reduce.torch, p4reduce.mpi, p4reduce.spark, torch, ray, pyspark, mpi4py, "
    "jupyterlab, tensorboard, mlflow, wandb, onnx"
)


def run(*command: object, **more: object) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return str(done.stdout)


def environment(path: Path, *packages: object) -> Path:
    run(sys.executable, "-m", "venv", path)
    python = path / "bin" / "python"
    if packages:
        run(python, "-m", "pip", "install", "--quiet", *packages)
    return python


def installed(python: Path) -> dict[str, str]:
    lines = run(python, "-m", "pip", "list", "--format=freeze").splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    [built] = folder.glob("p4reduce-*.whl")
    return built


@pytest.fixture(scope="module")
def lab(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has switch, controller and lab."""
    return environment(tmp_path_factory.mktemp("lab") / "venv", f"p4reduce[lab] @ {wheel.as_uri()}")


def job(lab: Path, worker: Path) -> None:
    """Two ranks of `worker`'s environment over a switch and a controller of `lab`'s."""
    run(
        lab.parent / "p4reduce-lab", "exec", "-n", 2, "--",
        worker, ROOT / "examples" / "allreduce.py", timeout=120,
    )  # fmt: skip


def test_beside_the_newest_of_what_people_train_with(
    wheel: Path, lab: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", *OTHERS)
    before = installed(python)
    run(python, "-m", "pip", "install", "--quiet", f"p4reduce[torch] @ {wheel.as_uri()}")
    after = installed(python)
    assert {name: after.get(name) for name in before} == before
    run(python, "-m", "pip", "check")
    run(python, "-c", f"import {IMPORTS}")
    job(lab, python)


def test_torch_is_the_only_extra_that_torchrun_needs(wheel: Path, tmp_path: Path) -> None:
    """Two ranks train by a switch that they start, beside the newest protobuf."""
    python = environment(tmp_path / "venv", f"p4reduce[torch] @ {wheel.as_uri()}")
    there = installed(python)
    assert not {"p4runtime-shell", "ipython", "jedi"} & there.keys()
    assert int(there["protobuf"].split(".")[0]) >= 6
    run(python, "-m", "pip", "check")
    output = run(
        python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
        ROOT / "tests" / "pytorch" / "programs" / "started.py", cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert output.count('"shares": [1.0]') == 2, output
    run(python.parent / "p4reduce-controller", "doctor", "--help")


@pytest.mark.parametrize("protobuf", ["3.20.2", "4.25.8", "5.29.5", "6.33.5", "7.36.2"])
def test_workers_with_old_and_new_protobuf(
    protobuf: str, wheel: Path, lab: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", wheel, f"protobuf=={protobuf}")
    assert installed(python)["protobuf"] == protobuf
    job(lab, python)


def test_the_switch_with_a_new_protobuf(wheel: Path, lab: Path, tmp_path: Path) -> None:
    """A switch from an environment with tensorboard, the controller and the ranks from `lab`'s."""
    python = environment(tmp_path / "venv", f"p4reduce[switch] @ {wheel.as_uri()}", "tensorboard")
    assert int(installed(python)["protobuf"].split(".")[0]) >= 6
    run(python, "-m", "pip", "check")
    with tempfile.TemporaryDirectory(prefix="p4r-") as folder, contextlib.ExitStack() as ends:
        here = Path(folder)
        ports = [f"--port={n}=unix:{here}/port{n}.sock" for n in (1, 2)]
        switch = f"unix:{here}/switch.sock"
        controller = f"unix:{here}/controller.sock"
        ready = here / "ready"
        start(
            ends, python.parent / "p4reduce-switch", "--grpc-addr", switch, *ports,
            "--ready-file", ready,
        )  # fmt: skip
        wait_for(ready)
        start(
            ends, lab.parent / "p4reduce-controller", "serve", "--switch", switch,
            "--ports", "1-2", "--listen", controller,
            env={**os.environ, "P4REDUCE_STATE_DIR": str(here)},
        )  # fmt: skip
        wait_for(here / "controller.sock")
        ranks = [
            start(
                ends, lab, ROOT / "examples" / "allreduce.py",
                env={
                    **os.environ,
                    "P4REDUCE_CONTROLLER": controller,
                    "P4REDUCE_INTERFACE": f"unix:{here}/port{{port}}.sock",
                    "P4REDUCE_RANK": str(rank),
                    "P4REDUCE_WORLD_SIZE": "2",
                },
            )
            for rank in (0, 1)
        ]  # fmt: skip
        assert [rank.wait(120) for rank in ranks] == [0, 0]


def start(
    ends: contextlib.ExitStack, *command: object, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([str(part) for part in command], env=env)
    ends.callback(process.wait, 60)
    ends.callback(process.terminate)
    return process


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come about in a minute"
        time.sleep(0.1)
