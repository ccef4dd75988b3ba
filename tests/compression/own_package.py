# SPDX-License-Identifier: Apache-2.0
"""Installs a package of pure Python without a network: its files and what its metadata say."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def installed(package: Path, site: Path) -> Path:
    """Puts a folder's modules, and the metadata that its pyproject.toml declares, into `site`.

    Returns:
        The directory, for sys.path or PYTHONPATH.
    """
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    metadata = site / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    for module in package.glob("*.py"):
        shutil.copy(module, site)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    (metadata / "METADATA").write_text(head)
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site
