# SPDX-License-Identifier: Apache-2.0
"""The wheel in each Python that can be had here: uv's, this machine's, or Debian's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import DEADLINE, Distributions, install_for, run
from needed import ROOT, marked, needs
from roots import debian_root, inside

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(3600),
    needs(packages=("build", "hatchling", "ziglang", "uv")),
]

EXAMPLE = ROOT / "examples" / "allreduce.py"
IMPORT_ALL = Path(__file__).parent / "import_all.py"
NO_COMPILER = {"CC": "/nonexistent"}
DEBIAN = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""The suites that have a Python."""


def interpreter(version: str) -> str | None:
    """A Python of this version that uv finds or can fetch."""
    uv = (sys.executable, "-m", "uv", "python")
    for command in (("find", "--no-python-downloads"), ("install",), ("find",)):
        done = subprocess.run(
            [*uv, *command, version], capture_output=True, text=True, timeout=DEADLINE
        )
        if done.returncode == 0 and "find" in command:
            return done.stdout.strip()
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else None


def in_environment(python: str, wheel: Path, folder: Path, variables: dict[str, str]) -> str:
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--quiet", "--python", python, folder)
    of = folder / "bin" / "python"
    run(*uv, "pip", "install", "--quiet", "--python", of, f"p4reduce[lab] @ {wheel.as_uri()}")
    run(*uv, "pip", "check", "--python", of)
    lab = folder / "bin" / "p4reduce-lab"
    said = run(of, IMPORT_ALL, variables=variables)
    return said + run(lab, "exec", "-n", 2, "--", of, EXAMPLE, variables=variables)


def in_debian(version: str, wheel: Path, folder: Path, variables: dict[str, str]) -> str:
    root = debian_root(
        DEBIAN[version], "amd64", f"python{version}", "python3-venv", "ca-certificates"
    )
    what = ("pip", f"p4reduce[lab] @ {wheel.as_uri()}")
    install_for(folder, version, "x86_64-manylinux_2_28", *what)
    own = {**variables, "PYTHONPATH": f"/outside{folder}", "HOME": "/root"}
    python = f"/usr/bin/python{version}"
    run(*inside(root, python, "-m", "pip", "check"), variables=own)
    said = run(*inside(root, python, f"/outside{IMPORT_ALL}"), variables=own)
    command = [python, "-m", "p4reduce_lab", "exec", "-n", "2", "--", python, f"/outside{EXAMPLE}"]
    return said + run(*inside(root, *command), variables=own)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_a_job_of_the_wheel(version: str, released: Distributions, tmp_path: Path) -> None:
    wheel = released.wheel("x86_64")
    with marked() as environment:
        variables = {**environment, **NO_COMPILER, "P4REDUCE_CACHE_DIR": str(tmp_path / "cache")}
        python = interpreter(version)
        if python is not None:
            said = in_environment(python, wheel, tmp_path / "venv", variables)
        elif version in DEBIAN and os.geteuid() == 0 and shutil.which("debootstrap"):
            said = in_debian(version, wheel, tmp_path / "modules", variables)
        else:
            pytest.skip(f"no Python {version}: uv cannot fetch one, and debootstrap takes root")
    imported = re.search(r"imported (\d+)", said)
    assert imported is not None
    assert int(imported[1]) > 500
    assert "rank 1" in said


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_the_lab_without_installing_it(tool: str, released: Distributions, tmp_path: Path) -> None:
    """As `uvx p4reduce-lab run` and `pipx run p4reduce-lab run`, with the release in a folder."""
    pytest.importorskip("pipx")
    links = f"--find-links={released.folder}"
    command = {
        "uvx": [sys.executable, "-m", "uv", "tool", "run", links, "p4reduce-lab"],
        "pipx": [sys.executable, "-m", "pipx", "run", f"--pip-args={links}", "p4reduce-lab"],
    }[tool]
    with marked() as environment:
        homes = {
            "UV_TOOL_DIR": str(tmp_path / "uv"),
            "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
            "PIPX_HOME": str(tmp_path / "pipx"),
        }
        said = run(*command, "run", "--ranks", 2, variables={**environment, **homes}, cwd=tmp_path)
    assert "retransmissions" in said
