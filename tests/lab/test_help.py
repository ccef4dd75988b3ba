# SPDX-License-Identifier: Apache-2.0
"""What every command says of itself: whole sentences, an example, and nothing cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from p4reduce_controller.cli.command_line import cli
from p4reduce_lab.cli import commands

COLUMNS = 80
# One name each, whatever the command is about.
NEVER = {"--workers", "--world-size", "--rate", "--addr"}


def every(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from every(below, *path, name)


COMMANDS = [
    pytest.param(root, path, command, id=" ".join(path))
    for root, program in ((commands, "p4reduce-lab"), (cli, "p4reduce-controller"))
    for path, command in every(root, program)
]


@pytest.mark.parametrize(("root", "path", "command"), COMMANDS)
def test_a_commands_help(root: click.Group, path: tuple[str, ...], command: click.Command) -> None:
    shown = CliRunner().invoke(root, [*path[1:], "--help"], env={"COLUMNS": str(COLUMNS)}).output
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert "..." not in shown.split("\n", 1)[1]
    first = re.search(r"\n\n  (.*?)\n\n", shown, re.DOTALL)
    assert first is not None
    assert re.match(r"[A-Z].*\.$", first.group(1), re.DOTALL), first.group(1)
    assert re.search(rf"\n  Examples?:\n    .*{re.escape(path[0])}", shown), shown
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        assert not NEVER & set(option.opts), option.opts
        assert option.help, option.opts
        said = re.sub(r"\s*\[.*", "", option.help, flags=re.DOTALL)
        assert re.match(r"[A-Z\-].*[.]$", said or "A.", re.DOTALL), (option.opts, said)


def test_the_list_of_commands_shows_those_for_people() -> None:
    shown = CliRunner().invoke(commands, ["--help"]).output
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", shown.split("Commands:")[1], re.MULTILINE)
    assert {"run", "exec", "up", "plan", "bench-diff"} <= set(listed)
