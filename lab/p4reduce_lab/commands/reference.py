# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab reference``: the demo's training in one process, which `run` starts."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(hidden=True)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Train as the demo's ranks in DIRECTORY do, but in this process alone.

    \b
    Example:
      p4reduce-lab reference /tmp/p4reduce-…
    """
    from p4reduce_lab.demo.training.reference import run_reference

    run_reference(directory)
