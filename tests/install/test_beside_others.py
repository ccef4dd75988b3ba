# SPDX-License-Identifier: Apache-2.0
"""A wheel of p4reduce in environments that others fill: nothing is downgraded, and a job runs.

These tests fetch packages (some gigabytes) and take minutes: `make test-install`.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
OTHERS = ["ipython", "jupyterlab", "tensorboard", "ray", "mlflow"]


def run(*command: object, **more: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **more  # type: ignore[call-overload]
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
    """An environment that has switch, controller and lab, with the pins of p4runtime-shell."""
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
    run(python, "-m", "pip", "install", "--quiet", wheel)
    after = installed(python)
    assert {name: after.get(name) for name in before} == before
    run(python, "-m", "pip", "check")
    job(lab, python)


@pytest.mark.parametrize("protobuf", ["3.20.2", "4.25.8", "5.29.5", "6.33.5", "7.36.2"])
def test_workers_with_old_and_new_protobuf(
    protobuf: str, wheel: Path, lab: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "venv", wheel, f"protobuf=={protobuf}")
    assert installed(python)["protobuf"] == protobuf
    job(lab, python)


def test_the_switch_with_a_new_protobuf(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", f"p4reduce[switch] @ {wheel.as_uri()}", "tensorboard")
    assert int(installed(python)["protobuf"].split(".")[0]) >= 6
    program = ROOT / "p4src" / "compiled"
    dumped = run(
        python.parent / "p4reduce-switch",
        "--help",
        timeout=60,
    )
    assert "--port" in dumped
    assert program.is_dir()
    run(python, "-c", "import p4reduce_switch.p4runtime.server", timeout=60)
