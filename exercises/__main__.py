# SPDX-License-Identifier: Apache-2.0
"""`python -m exercises LAB FILE`: check a solution, from the folder of the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from exercises.checks.labs import LABS, folder
from exercises.checks.report import Report, UnusableError, run


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("lab", type=click.IntRange(1, len(LABS)))
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False
)
@click.option("--all", "-a", "everything", is_flag=True, help="Go on after the first mistake.")
def main(lab: int, file: Path | None, everything: bool) -> None:
    """Check FILE as the solution of a lab; without FILE, the lab's skeleton.

    Ends with exit code 1 if something is wrong.

    \b
    Examples:
      python -m exercises 1
      python -m exercises 3 my-loss.p4
    """
    chosen = LABS[lab - 1]
    if file is None:
        file = folder(lab) / f"skeleton{chosen.suffix}"
    try:
        report = run(chosen.checks(file), stop=not everything)
    except UnusableError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Lab {lab}, {file}: {chosen.title}")
    click.echo(text(report))
    sys.exit(0 if report.passed else 1)


def text(report: Report) -> str:
    """What people read."""
    lines = []
    for name, wrong in report.results:
        lines.append(f"  {'ok   ' if wrong is None else 'WRONG'} {name}")
        if wrong is not None:
            lines += [f"        {line}" for line in wrong.lines()]
    if report.left:
        lines.append(f"  {report.left} more to come; --all runs them too")
    if report.passed:
        lines.append("All is right.")
    return "\n".join(lines)


if __name__ == "__main__":
    main(prog_name="python -m exercises")
