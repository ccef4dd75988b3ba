# SPDX-License-Identifier: Apache-2.0
"""Options, errors and output that the commands of `p4reduce-controller` share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from google.protobuf.message import Message
from p4reduce import variables
from p4reduce.control.client import ControlClient, ControlError, NoAnswerError
from p4reduce.control.controller_address import default_address, parse_address
from p4reduce.control.pem import in_a_file
from p4reduce.control.tls import OPTIONS, TlsError, TlsFiles
from p4reduce_common.command_group import CommandGroup
from p4reduce_common.grpc_channels import uses_proxy
from rich.console import Console, RenderableType

from p4reduce_controller.terminal.exit_codes import CommandFailure, Exit
from p4reduce_controller.terminal.json_output import plain

_F = TypeVar("_F", bound=Callable[..., Any])

PIPE_WIDTH = 1000  # columns where there is no terminal: lines are for grep, so none is wrapped


@dataclass
class CliOptions:
    """The options before the command's name."""

    controller: str | None
    json: bool
    tls: TlsFiles | None

    @property
    def address(self) -> str:
        """The controller's address. Raises CommandFailure if the environment holds no valid one."""
        if self.controller:
            return self.controller  # the option's callback has read it
        try:
            address = default_address()
            parse_address(address)
        except ValueError as error:
            raise CommandFailure(f"{variables.CONTROLLER}: {error}", Exit.USAGE) from None
        return address

    def connect(self) -> ControlClient:
        """Return a client that is connected to the controller."""
        return ControlClient(self.address, self.tls)


class ControllerGroup(CommandGroup):
    """A group of commands that ends with the controller's exit codes."""

    group_class = CommandGroup

    def invoke(self, ctx: click.Context) -> Any:
        try:
            uses_proxy()
        except ValueError as error:
            raise CommandFailure(str(error), Exit.USAGE) from None
        try:
            return super().invoke(ctx)
        except TlsError as error:
            raise CommandFailure(str(error), Exit.USAGE) from None
        except NoAnswerError as error:
            raise CommandFailure(
                f"{error}. Is it running? See 'p4reduce-controller serve --help'; where "
                "'p4reduce-lab up' runs in another shell, export what it prints",
                Exit.UNREACHABLE,
            ) from None
        except ControlError as error:
            code = {
                grpc.StatusCode.NOT_FOUND: Exit.NOT_FOUND,
                grpc.StatusCode.DEADLINE_EXCEEDED: Exit.DEADLINE,
            }.get(error.code, Exit.REFUSED)
            raise CommandFailure(str(error), code) from None


def exit_codes() -> str:
    lines = "\n".join(f"  {code.value}  {code.meaning}" for code in Exit)
    return f"\b\nExit codes:\n{lines}"


def with_json(command: _F) -> _F:
    """Accept --json after the command's name as well."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.find_root().obj.json = True

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Print JSON, with the field names of control.proto.",
    )(command)


class _Pem(click.Path):
    """A file in PEM form. A variable may hold the text itself, as `p4reduce-lab deploy` sets it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(in_a_file(os.fspath(value)) or value, param, ctx)


def tls_options(prefix: str, whom: str) -> Callable[[_F], _F]:
    """Add --PREFIXtls-cert, -key and -ca. Those without a prefix are also read from the
    environment."""
    helps = (
        f"Own TLS certificate towards {whom}: a PEM file.",
        "The certificate's key.",
        f"The CA of the certificates of {whom}.",
    )

    def add(command: _F) -> _F:
        for option, variable, text in reversed([*zip(OPTIONS, variables.TLS, helps, strict=True)]):
            command = click.option(
                option.replace("--", f"--{prefix}"),
                type=_Pem(dir_okay=False, path_type=Path),
                metavar="FILE",
                envvar=None if prefix else variable,
                show_envvar=True,
                help=text,
            )(command)
        return command

    return add


def switch_tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """Return the TLS files of the options --switch-tls-…. Raises TlsError."""
    return TlsFiles.given(
        cert, key, ca, ("--switch-tls-cert", "--switch-tls-key", "--switch-tls-ca")
    )


def read_address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check that an option's value is a gRPC address, and return it."""
    if value is not None:
        try:
            parse_address(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


def console() -> Console:
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def put(
    options: CliOptions, data: Message | list[Any] | dict[str, Any], view: RenderableType
) -> None:
    """Print JSON or a view for people."""
    if options.json:
        click.echo(json.dumps(plain(data) if isinstance(data, Message) else data, indent=2))
    else:
        console().print(view)


state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="P4REDUCE_STATE_DIR",
    show_envvar=True,
    help="Where the controller keeps what outlives it.  [default: ~/.local/state/p4reduce]",
)
