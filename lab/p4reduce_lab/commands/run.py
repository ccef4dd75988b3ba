# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab run``: the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4reduce_lab.errors import LabError
from p4reduce_lab.options import SystemWish, output_option, ranks_option, system_options

if TYPE_CHECKING:
    from p4reduce_lab.choice import LabChoice
    from p4reduce_lab.topology import LabTopology


def _known_compression(context: click.Context, option: click.Parameter, name: str) -> str:
    from p4reduce.compression import compressor_by_name

    try:
        compressor_by_name(name, world_size=1)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return name


@click.command()
@ranks_option("How many ranks train together.")
@click.option(
    "--framework",
    type=click.Choice(["numpy", "torch"]),
    default="numpy",
    envvar="FRAMEWORK",
    show_envvar=True,
    show_default=True,
    help="What trains. torch: a convolutional network over DistributedDataParallel, by the switch "
    "and by Gloo.",
)
@click.option("--steps", type=click.IntRange(1), help="How many steps the optimiser makes.")
@click.option(
    "--seed", type=click.IntRange(0), help="Draws the data split, the weights and the batches."
)
@click.option(
    "--compression",
    default="none",
    envvar="COMPRESSION",
    show_envvar=True,
    callback=_known_compression,
    metavar="NAME",
    show_default=True,
    help="The compressor of gradients: cat, topk:0.1, … (a wrong NAME lists all). Trains "
    "uncompressed as well, to compare.",
)
@click.option(
    "--fault",
    type=click.Choice(["none", "kill-worker", "restart-switch", "restart-controller"]),
    default="none",
    envvar="FAULT",
    show_envvar=True,
    show_default=True,
    help="What is killed after a third of the steps. Trains undisturbed as well, to compare.",
)
@output_option("build/run", "Where summary.json, training.png and the logs go.")
@system_options()
@click.pass_context
def command(
    context: click.Context,
    ranks: int,
    framework: str,
    steps: int | None,
    seed: int | None,
    compression: str,
    fault: str,
    output: Path,
    wish: SystemWish,
) -> None:
    """Train a classifier on real data, its gradients summed by the switch.

    Ends with exit code 1 if the result is not the one that numpy gets in a single process.

    \b
    Examples:
      p4reduce-lab run
      p4reduce-lab run --ranks 8 --compression cat
    """
    from rich.console import Console

    from p4reduce_lab.demo.config import TrainingConfig
    from p4reduce_lab.demo.run import PICTURE_FILE, SUMMARY_FILE, run_demo
    from p4reduce_lab.text import wrapped

    topology = wish.topology(context, "ranks", ranks)
    if framework == "torch":
        _run_torch(topology, steps, seed, compression, fault, output, wish.choose())
        return
    given = {"steps": steps, "seed": seed}
    config = TrainingConfig(
        workers=topology.ranks,
        compression=compression,
        fault=fault,
        **{name: value for name, value in given.items() if value is not None},
    )
    # Neither BMv2 nor Mininet can have several cores.
    choice = wish.choose(nearest_to_real=wish.cores == 1)
    console = Console(highlight=False)
    console.print(wrapped(f"Switch: {choice.text}{topology.text_if_several}"), soft_wrap=True)
    summary = run_demo(config, choice, output, console, topology)
    console.print()
    for line in summary.lines():
        console.print(wrapped(f"  {line}", 19), soft_wrap=True)
    for warning in summary.warnings():
        text = wrapped(f"  WARNING          {warning}", 19)
        console.print(text, style="yellow", soft_wrap=True)
    console.print(f"\n  {output / SUMMARY_FILE}  {output / PICTURE_FILE}", soft_wrap=True)
    if problems := summary.problems():
        raise LabError("; ".join(problems))


def _run_torch(
    topology: LabTopology,
    steps: int | None,
    seed: int | None,
    compression: str,
    fault: str,
    output: Path,
    choice: LabChoice,
) -> None:
    from p4reduce_lab.text import wrapped
    from p4reduce_lab.torch_demo.run import SUMMARY_FILE, lines, problems, run_torch_demo

    if fault != "none":
        raise LabError("FAULT is for FRAMEWORK=numpy; docs/pytorch.md says what happens with torch")
    print(wrapped(f"Switch: {choice.text}{topology.text_if_several}"), flush=True)
    runs = run_torch_demo(topology, steps, seed, compression, choice, output)
    print("\n  " + "\n  ".join(lines(runs)) + f"\n\n  {output / SUMMARY_FILE}")
    if found := problems(runs, compression):
        raise LabError("; ".join(found))
