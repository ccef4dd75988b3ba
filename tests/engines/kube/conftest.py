# SPDX-License-Identifier: Apache-2.0
"""The container image of the release, on a base of Debian's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from containers import Podman, podman
from distributions import run, wheelhouse
from needed import DEADLINE, ROOT
from roots import debian_root

IMAGE = "localhost/p4reduce:latest"
"""As deploy/kubernetes names it."""
EXTRAS = "demo"


@pytest.fixture(scope="session")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """podman, which has `IMAGE`."""
    root = debian_root("trixie", "amd64", "python3.13", "python3-venv", "ca-certificates")
    wheels = tmp_path_factory.mktemp("wheels")
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--wheel-dir", wheels, ROOT,
        variables={**os.environ, "P4REDUCE_WHEEL_FOR": "x86_64"},
    )  # fmt: skip
    [wheel] = wheels.glob("*.whl")
    wheelhouse(wheels, "3.13", f"p4reduce[{EXTRAS}] @ {wheel.as_uri()}")
    with podman() as made:
        try:
            archive = subprocess.Popen(
                ["tar", "-c", "--exclude=./outside", "--exclude=./proc", "--exclude=./dev",
                 "--exclude=./var/cache/apt", "-C", root, "."],
                stdout=subprocess.PIPE,
            )  # fmt: skip
            subprocess.run(
                [made.program, "import", "-", "localhost/base"],
                stdin=archive.stdout, check=True, timeout=DEADLINE, capture_output=True,
            )  # fmt: skip
            assert archive.wait(DEADLINE) == 0
            trial = ("run", "--rm", "--network=none", "localhost/base", "/usr/bin/true")
            runs = made(*trial, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            runs = str(error)
        if runs.strip():
            pytest.skip(f"this machine lets podman run no container: {runs.strip()[-300:]}")
        run(
            ROOT / "tools" / "build-image", IMAGE, "--network=none",
            "--build-arg=BASE=localhost/base", "--build-arg=PIP_OPTIONS=--no-index",
            variables={**os.environ, "WHEELS": str(wheels), "BUILDER": str(made.program)},
        )  # fmt: skip
        yield made
