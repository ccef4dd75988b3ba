# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab bench-diff``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("before")
@click.argument("after")
@click.option(
    "--noise",
    type=click.FloatRange(0),
    default=0.2,
    show_default=True,
    help="The share by which figures without a measured spread may differ.",
)
@click.option("--all", "everything", is_flag=True, help="Show changes within noise, too.")
def command(before: str, after: str, noise: float, everything: bool) -> None:
    """Show what got slower beyond noise from BEFORE to AFTER.

    Ends with exit code 1 if anything did, and with 2 if the two cannot be compared.

    Each is a result file of `make bench` or `p4reduce-lab compare`, or a commit for which
    build/bench or build/compare has one.

    \b
    Example:
      p4reduce-lab bench-diff before.json build/bench/results.json
    """
    from p4reduce_lab.measured.difference import difference, find_results, lines, read_results

    places = [Path("build/bench"), Path("build/compare")]
    paths = [find_results(name, places) for name in (before, after)]
    found = difference(read_results(paths[0]), read_results(paths[1]), noise)
    click.echo("\n".join(lines(found, [str(path) for path in paths], everything=everything)))
    if found.slower:
        raise click.exceptions.Exit(1)
