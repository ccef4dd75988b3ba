# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab worker``: one rank of the demo, which `run` starts."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab.errors import LabError


@click.command(hidden=True)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Run one rank of the demo whose launcher has prepared DIRECTORY.

    \b
    Example:
      RANK=0 p4reduce-lab worker /tmp/p4reduce-…
    """
    from p4reduce.control.client import ControlError
    from p4reduce.errors import P4ReduceError

    from p4reduce_lab.demo.ranks.worker import run_worker

    try:
        run_worker(directory)
    except (P4ReduceError, ControlError) as error:
        raise LabError(f"{type(error).__name__}: {error}") from error
