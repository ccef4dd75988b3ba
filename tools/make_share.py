# SPDX-License-Identifier: Apache-2.0
"""Writes man pages and completions for bash, zsh and fish, from the commands themselves.

    python tools/make_share.py DIRECTORY

The files lie as below a `share` directory. tools/build_dist.py puts them into sdist and wheels.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

COMMANDS = {
    "p4reduce-lab": ("p4reduce_lab.cli", "commands"),
    "p4reduce-controller": ("p4reduce_controller.cli.command_line", "cli"),
    "p4reduce-switch": ("p4reduce_switch.cli", "cli"),
}
"""Of each program the module and the name of its click command.

p4reduce-simple-switch-grpc has BMv2's options and no click command: docs/simple-switch.md has them.
"""

SHELLS: dict[type[ShellComplete], str] = {
    BashComplete: "bash-completion/completions/{program}",
    ZshComplete: "zsh/site-functions/_{program}",
    FishComplete: "fish/vendor_completions.d/{program}.fish",
}


def escaped(text: str) -> str:
    """Text for troff: no character of it is a command."""
    lines = text.replace("\\", "\\(rs").replace("-", "\\-").replace("'", "\\(aq").splitlines()
    return "\n".join("\\&" + line if line.startswith(".") else line for line in lines)


def paragraphs(text: str) -> Iterator[str]:
    r"""A help text as troff; paragraphs that begin with \b keep their lines."""
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield f".nf\n{escaped(paragraph[1:].strip(chr(10)))}\n.fi"
        else:
            yield escaped(" ".join(paragraph.split()))


def options(context: click.Context) -> Iterator[str]:
    """The options of a command, each with its help."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            name, text = record
            yield f".TP\n\\fB{escaped(name)}\\fR\n{escaped(' '.join(text.split()))}"


def contexts(context: click.Context) -> Iterator[click.Context]:
    """The commands of a group and of the groups in it, each with its context; none of a command."""
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            inner = click.Context(command, info_name=name, parent=context)
            yield inner
            yield from contexts(inner)


def help_of(command: click.Command) -> str:
    """The whole help text, without the part that is for readers of the code."""
    return inspect.cleandoc((command.help or "").split("\f")[0])


def usage(context: click.Context) -> str:
    """One line: the command and what follows it."""
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def man_page(program: str, command: click.Command, version: str) -> str:
    """The page of section 1 for a program and its commands."""
    context = click.Context(command, info_name=program)
    lines = [
        f'.TH {program.upper()} 1 "" "p4reduce {version}" "p4reduce"',
        ".SH NAME",
        f"{program} \\- {escaped(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f"\\fB{escaped(usage(context))}\\fR",
        ".SH DESCRIPTION",
        *paragraphs(help_of(command)),
        ".SH OPTIONS",
        *options(context),
    ]
    inner = list(contexts(context))
    if inner:
        lines.append(".SH COMMANDS")
    for each in inner:
        lines += [f'.SS "{escaped(usage(each))}"', *paragraphs(help_of(each.command))]
        lines += options(each)
    others = [f"\\fB{escaped(other)}\\fR(1)" for other in COMMANDS if other != program]
    lines += [".SH SEE ALSO", ", ".join(others)]
    return "\n".join(lines) + "\n"


def write(directory: Path) -> None:
    """Write all pages and completions below `directory`."""
    version = metadata.version("p4reduce")
    for program, (module, name) in COMMANDS.items():
        command = getattr(import_module(module), name)
        texts = {f"man/man1/{program}.1": man_page(program, command, version)}
        for shell, place in SHELLS.items():
            variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
            complete = shell(command, {}, program, variable)
            text = complete.source_template % complete.source_vars()
            texts[place.format(program=program)] = text.strip("\n") + "\n"
        for place, text in texts.items():
            path = directory / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("directory", type=Path)
    write(parser.parse_args().directory)
