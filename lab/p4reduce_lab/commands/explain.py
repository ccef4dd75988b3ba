# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab explain``."""

from __future__ import annotations

import sys

import click


@click.command()
@click.argument("words", nargs=-1, metavar="MESSAGE...")
def command(words: tuple[str, ...]) -> None:
    """Print causes and cures of an error message.

    MESSAGE is the text of the error, or the name of its class. Without it, standard input is read.
    Exit code 1: no known message is in the text.

    \b
    Examples:
      p4reduce-lab explain WorkerLostError
      p4reduce-lab explain "rank 1 was lost: no heartbeat for 3 s"
      python train.py 2>&1 | p4reduce-lab explain
    """
    from p4reduce_lab.errors import LabError
    from p4reduce_lab.explain.messages import explain, fitting

    text = " ".join(words) or sys.stdin.read()
    found = fitting(text)
    if not found:
        raise LabError(f"no known error message is in {text.strip()[:200]!r}")
    click.echo(explain(found))
