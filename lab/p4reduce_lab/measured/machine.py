# SPDX-License-Identifier: Apache-2.0
"""The machine and time of a measurement, which are stored with it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce_native.cpus import usable_cpus

_GIT = 10.0  # seconds


def machine() -> dict[str, Any]:
    """Return processor, usable cores, memory in GB, kernel, Python and numpy."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": model,
        "cores": usable_cpus(),
        "memory_gb": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def describe(figures: dict[str, Any]) -> str:
    """Return one line for the top of a report."""
    return (
        f"{figures['cpu']}, {figures['cores']} cores, {figures['memory_gb']} GB; "
        f"Linux {figures['kernel']}, Python {figures['python']}, numpy {figures['numpy']}"
    )


def provenance(*packages: str) -> dict[str, Any]:
    """Return the beginning of a result file.

    Args:
        packages: whose versions matter besides p4reduce's; None where one is not installed.

    Returns:
        "machine", as of `machine`; "time" (UTC); "commit" of the checkout, with "+" where files of
        it were changed, or None; "versions"; "load": the load average over a minute, which says
        whether something else was running.
    """
    return {
        "machine": machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "versions": {name: _version(name) for name in ("p4reduce", *packages)},
        "load": os.getloadavg()[0],
    }


def described(report: dict[str, Any]) -> str:
    """Return `provenance` as sentences for a page."""
    versions = ", ".join(f"{name} {one}" for name, one in report["versions"].items() if one)
    commit_ = f", commit {report['commit']}" if report.get("commit") else ""
    return (
        f"Measured {report['time']} on {describe(report['machine'])}. Versions: {versions}"
        f"{commit_}. The load average before it was {report['load']:.2g}."
    )


def commit(checkout: Path | None = None) -> str | None:
    """Return the checkout's commit, shortened, and "+" if its files differ from it."""
    place = checkout or Path.cwd()
    try:
        name = _git(place, "rev-parse", "--short=10", "HEAD")
        changed = _git(place, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return name + ("+" if changed else "")


def _git(place: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(place), *arguments],
        capture_output=True,
        text=True,
        timeout=_GIT,
        check=True,
    ).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
