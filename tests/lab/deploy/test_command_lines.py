# SPDX-License-Identifier: Apache-2.0
"""Every command line of manifests, units, scripts and pages is one that today's commands take."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
COMMANDS = {
    "p4reduce-switch": "p4reduce_switch.cli:cli",
    "p4reduce-simple-switch-grpc": "",  # reads its arguments as BMv2 does, without click
    "p4reduce-controller": "p4reduce_controller.cli.command_line:cli",
    "p4reduce-lab": "p4reduce_lab.cli:commands",
}
# What scripts and pages have in the place of a value that only a run knows.
VALUES = {
    "SLURM_NTASKS": "4",
    "hosts": "node1,node2",
    "directory": "/tmp",
    "file": "/tmp/net.sh",
    "lab": "p4reduce-lab",
    "P4REDUCE_LISTEN": "127.0.0.1:7070",
}
ENDS = {"&", "&&", "||", "|", ";", ">", ">>", "<", "(", ")", "2>", ";;"}


def click_command(program: str) -> click.Command | None:
    """What a program is to click; None: it parses by itself."""
    module, _, name = COMMANDS[program].partition(":")
    return getattr(import_module(module), name) if module else None


def parse(words: list[str]) -> click.Context:
    """Parse a command line, of nested commands too, and run nothing. Raises click.UsageError."""
    command = click_command(words[0])
    assert command is not None
    context = command.make_context(words[0], words[1:])
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        name_, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, found.make_context(name_, rest, parent=context)
    return context


def commands_of(line: str) -> Iterator[list[str]]:
    """The command lines of ours within a line for a shell."""
    line = re.sub(r"\$\(field NumTasks\)", "4", line)
    line = re.sub(r"\$\{?(\w+)\}?", lambda match: VALUES.get(match[1], match[0]), line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:  # a quote that ends on another line
        return
    words: list[str] | None = None
    begins = True
    for token, following in itertools.pairwise([*tokens, ";", ";"]):
        if token in ENDS:
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(token)
        # Behind other words it may be a package's or a unit's name.
        elif Path(token).name in COMMANDS and (
            (begins and following not in ENDS)
            or following.startswith("-")
            or following in subcommands(token)
        ):
            words = [Path(token).name]
        begins = token in ENDS or re.match(r"\w+=", token) is not None


def subcommands(program: str) -> set[str]:
    command = click_command(Path(program).name)
    return set(command.commands) if isinstance(command, click.Group) else set()


def lines_of(text: str) -> Iterator[str]:
    """A script's lines, with those joined that a backslash continues."""
    yield from re.sub(r"\\\n\s*", " ", text).splitlines()


def unit_lines(path: Path) -> Iterator[str]:
    settings = [line.partition("=") for line in lines_of(path.read_text())]
    variables = dict(value.split("=", 1) for key, _, value in settings if key == "Environment")
    for key, _, value in settings:
        if key == "ExecStart":
            yield re.sub(r"\$\{?(\w+)\}?", lambda match: variables[match[1]], value)


def page_lines(path: Path) -> Iterator[str]:
    for token in MarkdownIt().parse(path.read_text("utf-8")):
        if token.type == "fence" and token.info.strip() in ("console", "sh", "bash"):
            lines = list(lines_of(token.content))
            typed = [line[2:] for line in lines if line.startswith(("$ ", "# "))]
            yield from (line for line in typed or lines if "…" not in line)


def scripts() -> list[Path]:
    found = [*(ROOT / "examples" / "slurm").iterdir(), ROOT / "deploy/container/Containerfile"]
    return sorted(path for path in found if path.is_file())


def pages() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path for path in found if "node_modules" not in path.parts)


def all_commands() -> dict[str, list[str]]:
    """Every command line, by where it is and what it is."""
    found = {}
    sources = [(path, unit_lines(path)) for path in (ROOT / "deploy/systemd").glob("*.service")]
    sources += [(path, lines_of(path.read_text())) for path in scripts()]
    sources += [(path, page_lines(path)) for path in pages()]
    for path, lines in sources:
        for line in lines:
            if path.name == "Containerfile" and line.startswith("CMD "):
                line = shlex.join(re.findall(r'"([^"]*)"', line))
            for words in commands_of(line):
                found[f"{path.relative_to(ROOT)}: {shlex.join(words)}"] = words
    return found


ALL = all_commands()


def refused(words: list[str]) -> str:
    """Why a command line is not taken; "" if it is."""
    if click_command(words[0]) is None:
        return ""
    try:
        parse(words)
    except click.exceptions.Exit:  # --help, --version
        return ""
    except click.ClickException as error:
        said = error.format_message()
        return "" if "does not exist" in said else said  # a file of the reader's
    return ""


def test_every_command_line_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("P4REDUCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)
    assert {where: why for where, words in ALL.items() if (why := refused(words))} == {}


@pytest.mark.parametrize(
    ("place", "at_least"),
    [("deploy/systemd", 2), ("deploy/container", 1), ("examples/slurm", 2), ("docs/", 25)],
)
def test_command_lines_are_found(place: str, at_least: int) -> None:
    assert sum(where.startswith(place) for where in ALL) >= at_least


def test_an_option_that_there_is_not_is_refused() -> None:
    [words] = commands_of("exec $lab deploy -n 4 --rank-host a,b --variables $file >log 2>&1 &")
    assert "No such option" in refused(words)
    assert "--rank-host" in refused(words)


def test_the_manifests_command_lines_are_taken() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")
    found = []
    for path in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"):
        for manifest in yaml.safe_load_all(path.read_text()):
            for container in containers_in(manifest):
                words = [*container.get("command", []), *container.get("args", [])]
                if words and words[0] in COMMANDS:
                    found.append(words[0])
                    assert refused(words) == "", path
    assert sorted(found) == ["p4reduce-controller", "p4reduce-switch"]


def containers_in(manifest: object) -> Iterator[dict[str, list[str]]]:
    """The containers of all pods in a manifest."""
    if isinstance(manifest, dict):
        yield from manifest.get("containers", [])
        for value in manifest.values():
            yield from containers_in(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from containers_in(value)
