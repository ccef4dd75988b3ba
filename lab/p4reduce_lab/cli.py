# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab``: the demo, own scripts over a switch of their own, and a switch to leave up."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from p4reduce_common.output import command

from p4reduce_lab.errors import ArgumentsError, Interrupted, LabError
from p4reduce_lab.measuring import COMMANDS
from p4reduce_lab.planning.command_line import plan

if TYPE_CHECKING:
    from p4reduce_lab.choice import Choice
    from p4reduce_lab.several import Switches
    from p4reduce_lab.tree import Shape

# What a command needs is imported in it: `worker` starts many times a run and needs little.

MAX_WORKERS = 64
MAX_SWITCHES = 8
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

WORKERS = click.IntRange(1, MAX_WORKERS)

switch_option = click.option(
    "--switch",
    type=click.Choice(["auto", "embedded", "bmv2"]),
    default="auto",
    envvar="SWITCH",
    show_default=True,
    help="Which switch runs the P4 program. [environment: SWITCH]",
)
network_option = click.option(
    "--net",
    type=click.Choice(["auto", "local", "udp", "mininet"]),
    default="auto",
    envvar="NET",
    show_default=True,
    help="What connects workers and switch. [environment: NET]",
)


def _possible_bandwidth(
    context: click.Context, option: click.Parameter, bandwidth: float | None
) -> float | None:
    from p4reduce_lab.networks.mininet_net import check_bandwidth

    try:
        check_bandwidth(bandwidth)
    except LabError as error:
        raise click.BadParameter(str(error)) from None
    return bandwidth


bandwidth_option = click.option(
    "--bandwidth",
    type=float,
    envvar="BW",
    callback=_possible_bandwidth,
    metavar="MBIT/S",
    help="Of each of Mininet's links. [environment: BW; default: not limited]",
)


pcap_option = click.option(
    "--pcap/--no-pcap",
    envvar="PCAP",
    help="Leave a capture of each of the switch's ports with the logs. [environment: PCAP]",
)


def _known_compression(context: click.Context, option: click.Parameter, name: str) -> str:
    from p4reduce.compression import compressor_by_name

    try:
        compressor_by_name(name, world_size=1)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return name


lab_output_option = click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/lab"),
    show_default=True,
    help="Where the logs go; says which lab is meant.",
)


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="p4reduce", prog_name="p4reduce-lab")
def commands() -> None:
    """Runs a P4 switch, its controller and workers on this machine."""


def _run_torch(
    workers: int,
    steps: int | None,
    seed: int | None,
    compression: str,
    fault: str,
    output: Path,
    choice: Choice,
    switches: Switches,
) -> None:
    from p4reduce_lab.several import switches_text
    from p4reduce_lab.text import wrapped
    from p4reduce_lab.torch_demo.run import SUMMARY_FILE, lines, problems, run_torch_demo

    if fault != "none":
        raise LabError("FAULT is for FRAMEWORK=numpy; docs/pytorch.md says what happens with torch")
    print(wrapped(f"Switch: {choice.text}{switches_text(switches)}"), flush=True)
    runs = run_torch_demo(workers, steps, seed, compression, choice, output, switches)
    print("\n  " + "\n  ".join(lines(runs)) + f"\n\n  {output / SUMMARY_FILE}")
    if found := problems(runs, compression):
        raise LabError("; ".join(found))


def _read_tree(context: click.Context, option: click.Parameter, text: str | None) -> Shape | None:
    from p4reduce_lab.tree import Shape

    return None if text is None else Shape.parse(text)


tree_option = click.option(
    "--tree",
    envvar="TREE",
    callback=_read_tree,
    metavar="LEAVESxRANKS",
    help="Leaf switches below a root, and how many ranks each has: 2x4. 2x2x4 has spines between. "
    "[environment: TREE]",
)
switches_option = click.option(
    "--switches",
    type=click.IntRange(1, MAX_SWITCHES),
    default=1,
    envvar="SWITCHES",
    show_default=True,
    help="Over how many switches the work is spread, side by side. [environment: SWITCHES]",
)


def _ranks_of(context: click.Context, option: str, given: int, tree: Shape | None) -> int:
    """How many ranks there are: those of the tree, if it is one."""
    if tree is None:
        return given
    if context.get_parameter_source(option) is not ParameterSource.DEFAULT and given != tree.ranks:
        raise ArgumentsError(f"{given} {option} do not fit the tree, which has {tree.ranks}")
    return tree.ranks


@commands.command()
@click.option("--workers", "-n", type=WORKERS, default=4, show_default=True, help="How many.")
@click.option(
    "--framework",
    type=click.Choice(["numpy", "torch"]),
    default="numpy",
    envvar="FRAMEWORK",
    show_default=True,
    help="What trains. torch: a convolutional network over DistributedDataParallel, by the switch "
    "and by Gloo. [environment: FRAMEWORK]",
)
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps.")
@click.option("--seed", type=click.IntRange(0), help="Of data split, weights and batches.")
@click.option(
    "--compression",
    default="none",
    envvar="COMPRESSION",
    callback=_known_compression,
    metavar="NAME",
    show_default=True,
    help="What of each gradient is sent: cat, topk:0.1, … (a wrong NAME lists all). Trains "
    "uncompressed as well, to compare. [environment: COMPRESSION]",
)
@click.option(
    "--fault",
    type=click.Choice(["none", "kill-worker", "restart-switch", "restart-controller"]),
    default="none",
    envvar="FAULT",
    show_default=True,
    help="What is killed after a third of the steps. Trains undisturbed as well, to compare. "
    "[environment: FAULT]",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/run"),
    show_default=True,
    help="Where summary.json, training.png and the logs go.",
)
@switch_option
@network_option
@bandwidth_option
@switches_option
@tree_option
@pcap_option
@click.pass_context
def run(
    context: click.Context,
    workers: int,
    framework: str,
    steps: int | None,
    seed: int | None,
    compression: str,
    fault: str,
    output: Path,
    switch: str,
    net: str,
    bandwidth: float | None,
    switches: int,
    tree: Shape | None,
    pcap: bool,
) -> None:
    """Train a classifier on real data, its gradients summed by the switch.

    Ends with exit code 1 if the result is not the one that numpy gets in a single process.
    """
    from rich.console import Console

    from p4reduce_lab.choice import choose
    from p4reduce_lab.demo.config import TrainingConfig
    from p4reduce_lab.demo.run import PICTURE_FILE, SUMMARY_FILE, run_demo
    from p4reduce_lab.several import switches_of, switches_text
    from p4reduce_lab.text import wrapped

    ranks = _ranks_of(context, "workers", workers, tree)
    which = switches_of(switches, tree)
    if framework == "torch":
        choice = choose(switch, net, bandwidth=bandwidth)
        choice = replace(choice, pcap=pcap)
        _run_torch(ranks, steps, seed, compression, fault, output, choice, which)
        return
    given = {"steps": steps, "seed": seed}
    config = TrainingConfig(
        workers=ranks,
        compression=compression,
        fault=fault,
        **{name: value for name, value in given.items() if value is not None},
    )
    choice = choose(switch, net, bandwidth=bandwidth, nearest_to_real=True)
    choice = replace(choice, pcap=pcap)
    console = Console(highlight=False)
    console.print(wrapped(f"Switch: {choice.text}{switches_text(which)}"), soft_wrap=True)
    summary = run_demo(config, choice, output, console, which)
    console.print()
    for line in summary.lines():
        console.print(wrapped(f"  {line}", 19), soft_wrap=True)
    for warning in summary.warnings():
        text = wrapped(f"  WARNING          {warning}", 19)
        console.print(text, style="yellow", soft_wrap=True)
    console.print(f"\n  {output / SUMMARY_FILE}  {output / PICTURE_FILE}", soft_wrap=True)
    if problems := summary.problems():
        raise LabError("; ".join(problems))


@commands.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rank", type=click.IntRange(0), help="[default: from the environment]")
@click.option("--controller", metavar="ADDRESS", help="[default: from the environment]")
def worker(directory: Path, rank: int | None, controller: str | None) -> None:
    """Be one rank of the demo whose launcher has prepared DIRECTORY. `run` starts these."""
    from p4reduce.control.client import ControlError
    from p4reduce.errors import P4ReduceError

    from p4reduce_lab.demo.ranks.worker import run_worker

    try:
        run_worker(directory, rank, controller)
    except (P4ReduceError, ControlError) as error:
        raise LabError(f"{type(error).__name__}: {error}") from error


@commands.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def reference(directory: Path) -> None:
    """Train as the demo's workers in DIRECTORY do, but in this process alone. `run` starts it."""
    from p4reduce_lab.demo.training.reference import run_reference

    run_reference(directory)


# What stands behind COMMAND is its own, whatever it is called.
@commands.command("exec", context_settings={**CONTEXT, "allow_interspersed_args": False})
@click.option("--workers", "-n", type=WORKERS, default=4, show_default=True, help="How many.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@switch_option
@network_option
@bandwidth_option
@switches_option
@tree_option
@pcap_option
@click.pass_context
def execute(
    context: click.Context,
    workers: int,
    command: tuple[str, ...],
    switch: str,
    net: str,
    bandwidth: float | None,
    switches: int,
    tree: Shape | None,
    pcap: bool,
) -> None:
    """Start COMMAND once for each rank, like mpirun or torchrun.

    Each process finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets
    them, and what p4reduce.init() needs in its environment; its output is prefixed by its rank.
    When one fails, all are ended, and its exit code is this command's. Where P4REDUCE_CONTROLLER
    is set (see `p4reduce-lab up`) the processes join that controller; otherwise a switch and a
    controller run for as long as they do; with --tree or --switches several switches. --pcap
    leaves captures in build/exec.

    \b
    p4reduce-lab exec -n 4 -- python examples/allreduce.py
    p4reduce-lab exec --tree 2x2 -- python examples/allreduce.py
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.execute import execute as run_processes
    from p4reduce_lab.execute import running_system
    from p4reduce_lab.several import switches_of

    ranks = _ranks_of(context, "workers", workers, tree)
    which = switches_of(switches, tree)
    running = running_system()
    if running is None:
        choice = replace(choose(switch, net, bandwidth=bandwidth), pcap=pcap)
        sys.exit(run_processes(list(command), ranks, choice, which))
    for option, given in (("--pcap", pcap), ("--tree", tree), ("--switches", switches > 1)):
        if given:
            raise ArgumentsError(f"{option} belongs to `p4reduce-lab up`, whose switch this uses")
    sys.exit(run_processes(list(command), ranks, running))


@commands.command()
@click.option(
    "--ports",
    type=WORKERS,
    default=8,
    show_default=True,
    help="Of each switch; one a rank.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/up"),
    show_default=True,
    help="Where the logs go.",
)
@switch_option
@network_option
@switches_option
@tree_option
@pcap_option
@click.pass_context
def up(
    context: click.Context,
    ports: int,
    output: Path,
    switch: str,
    net: str,
    switches: int,
    tree: Shape | None,
    pcap: bool,
) -> None:
    """Leave a switch and a controller running until Ctrl-C, for workers of your own."""
    from p4reduce_lab.choice import choose
    from p4reduce_lab.several import switches_of
    from p4reduce_lab.up import stay_up

    ranks = _ranks_of(context, "ports", ports, tree)
    choice = replace(choose(switch, net), pcap=pcap)
    stay_up(choice, ranks, output, switches_of(switches, tree))


@commands.command()
@click.option("--hosts", "-n", type=WORKERS, default=4, show_default=True, help="How many.")
@lab_output_option
@switch_option
@network_option
@bandwidth_option
@pcap_option
def lab(
    hosts: int, output: Path, switch: str, net: str, bandwidth: float | None, pcap: bool
) -> None:
    """Leave a Mininet network with a switch and its controller up, with Mininet's prompt.

    On its hosts one can ping, capture, and start workers by hand. Takes root.
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.lab import stay_in_lab

    choice = choose(switch, net, bandwidth=bandwidth, nearest_to_real=True, only_mininet=True)
    stay_in_lab(replace(choice, pcap=pcap), hosts, output)


@commands.command()
@lab_output_option
def stop(output: Path) -> None:
    """Take down the network that `lab` has left up."""
    from p4reduce_lab.lab import stop_lab

    stop_lab(output)


for _command in (*COMMANDS, plan):
    commands.add_command(_command)


def main() -> None:
    """Runs the command line; ends the process with an exit code: 0, 1 (it failed; the message
    says why), 2 (wrong or impossible arguments), or 128 + the signal that ended it; see
    `p4reduce_common.output` for output that cannot be written."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with command("p4reduce-lab"):
        sys.exit(_run())


def _run() -> int:
    try:
        code = commands(standalone_mode=False, prog_name="p4reduce-lab")
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LabError as error:
        click.echo(f"p4reduce-lab: {error}", err=True)
        return error.exit_code
    except Interrupted as interruption:
        click.echo(f"p4reduce-lab: ended by {interruption}", err=True)
        return interruption.exit_code
    return code if isinstance(code, int) else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once only: what follows is cleaning up, which has its own deadlines.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)
