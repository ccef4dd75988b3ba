# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab timeline``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("timeline.png"),
    show_default=True,
    help="The picture's file.",
)
@click.option("--begin", type=click.FloatRange(0), default=0.0, help="Start at this second.")
@click.option("--end", type=click.FloatRange(0), help="End at this second.")
def command(traces: tuple[Path, ...], output: Path, begin: float, end: float | None) -> None:
    """Draw the traces of `Communicator.trace`, one of TRACES per rank, each in a row.

    \b
    Example:
      p4reduce-lab timeline trace-0.json trace-1.json -o timeline.png
    """
    from p4reduce_lab.timeline import draw, read_trace

    draw([read_trace(path) for path in traces], output, begin, end)
    click.echo(str(output))
