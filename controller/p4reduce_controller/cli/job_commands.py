# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller job`: making, showing and ending jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import grpc
from p4reduce import variables
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.controller_address import is_local
from p4reduce_common.command_group import CommandGroup

from p4reduce_controller.cli.common import CliOptions, put, state_dir_option, with_json
from p4reduce_controller.jobs import tokens
from p4reduce_controller.jobs.job import DEFAULT_SLOTS, MAX_CHILDREN, MAX_WORLD_SIZE, SLOTS
from p4reduce_controller.storage.state_directory import default_state_directory
from p4reduce_controller.terminal import render
from p4reduce_controller.terminal.json_output import plain


@click.group(cls=CommandGroup)
def job() -> None:
    """Make, show and end jobs: groups of ranks that reduce together.

    \b
    Examples:
      p4reduce-controller job list
      p4reduce-controller job create training --ranks 4
    """


@job.command("create")
@click.argument("name")
@click.option(
    "--ranks",
    "-n",
    type=int,
    required=True,
    help=f"How many ranks it has, at most {MAX_CHILDREN}, or {MAX_WORLD_SIZE:,} on a tree of "
    "switches.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, SLOTS),
    help=f"How many of the switch's {SLOTS} slots it gets.  [default: {DEFAULT_SLOTS}]",
)
@click.option(
    "--token",
    envvar=variables.TOKEN,
    show_envvar=True,
    help="Require this token to join or delete the job: 16 to 200 characters.",
)
@click.option("--new-token", is_flag=True, help="Make a token, and print it.")
@click.option(
    "--switch",
    default="",
    metavar="NAME",
    help="The job's switch, if the controller has several without links between them.",
)
@with_json
@click.pass_obj
def job_create(
    options: CliOptions,
    name: str,
    ranks: int,
    slots: int | None,
    token: str | None,
    new_token: bool,
    switch: str,
) -> None:
    """Create a job before its ranks. Without this, the first rank that joins creates it.

    Workers find the job's token in P4REDUCE_TOKEN.

    \b
    Example:
      p4reduce-controller job create training --ranks 4 --new-token
    """
    if ranks < 0:  # does not fit the message; all else the controller judges
        raise click.UsageError(f"--ranks {ranks} is negative")
    token = tokens.new_token() if new_token else token or ""
    with options.connect() as client:
        request = pb.CreateJobRequest(
            name=name, world_size=ranks, slots=slots or 0, token=token, switch=switch
        )
        made = client.call(client.stub.CreateJob, request)
    if new_token and options.json:
        click.echo(json.dumps({**plain(made), "token": token}, indent=2))
        return
    put(options, made, render.job_details(made, {}))
    if new_token:
        click.echo(f"\ntoken  {token}\nIt is not kept, and cannot be shown again.")


@job.command("list")
@click.option("--all", "-a", "everything", is_flag=True, help="Show jobs that are over as well.")
@with_json
@click.pass_obj
def job_list(options: CliOptions, everything: bool) -> None:
    """List the jobs.

    \b
    Example:
      p4reduce-controller job list --all
    """
    with options.connect() as client:
        jobs = list(client.call(client.stub.ListJobs, pb.ListJobsRequest()).jobs)
    if not everything:
        jobs = [each for each in jobs if each.state in (pb.FORMING, pb.RUNNING)]
    put(options, {"jobs": [plain(each) for each in jobs]}, render.jobs_table(jobs))


@job.command("show")
@click.argument("name")
@with_json
@click.pass_obj
def job_show(options: CliOptions, name: str) -> None:
    """Show the latest job of a name, its ranks, and what the switch counted for them.

    \b
    Example:
      p4reduce-controller job show training
    """
    with options.connect() as client:
        statistics = client.call(client.stub.GetStatistics, pb.GetStatisticsRequest(job=name))
    ranks = {each.rank: each for each in statistics.ranks}
    put(options, statistics, render.job_details(statistics.job, ranks))


@job.command("delete")
@click.argument("name")
@click.option(
    "--token",
    help=f"The job's, where it has one.  [default: ${variables.TOKEN}, or the operator's, if the "
    "controller is on this machine and its state directory is ours to read]",
)
@state_dir_option
@with_json
@click.pass_obj
def job_delete(options: CliOptions, name: str, token: str | None, state_dir: Path | None) -> None:
    """End a job in any state. Its workers get the error with their next heartbeat.

    \b
    Example:
      p4reduce-controller job delete training
    """
    candidates = [token] if token is not None else _tokens_at_hand(options.address, state_dir)
    with options.connect() as client:
        try:
            gone = _delete(client, name, candidates)
        except ControlError as error:
            if error.code is not grpc.StatusCode.PERMISSION_DENIED or is_local(options.address):
                raise
            raise ControlError(error.code, f"{error}. {_NO_OPERATOR}") from None
    put(options, gone, render.jobs_table([gone]))


_NO_OPERATOR = (
    "The operator's token, which deletes any job, is in operator.token in the controller's state "
    "directory; it is read from there only on the controller's own machine. Give it, or the "
    "job's, by --token or P4REDUCE_TOKEN"
)


def _tokens_at_hand(address: str, state_dir: Path | None) -> list[str]:
    """Return tokens to try for a job, if none was given. One is empty if there are none."""
    at_hand = [os.environ.get(variables.TOKEN)]
    if is_local(address):  # no other machine's controller is to learn of it
        at_hand.append(tokens.read_operator_token(state_dir or default_state_directory()))
    return [token for token in at_hand if token] or [""]


def _delete(client: ControlClient, name: str, candidates: list[str]) -> pb.Job:
    token, *others = candidates
    try:
        return client.call(client.stub.DeleteJob, pb.DeleteJobRequest(name=name, token=token))
    except ControlError as error:
        if not others or error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
    return _delete(client, name, others)
