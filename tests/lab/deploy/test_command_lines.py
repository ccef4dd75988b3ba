# SPDX-License-Identifier: Apache-2.0
"""Every command line of manifests, units, scripts and pages is one that today's commands take."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from launched import DEADLINE, ENVIRONMENT, Launched
from markdown_it import MarkdownIt
from p4reduce.environment import Placement
from p4reduce.switches.addresses import switch_addresses
from p4reduce_lab.planning.advice import Question, advise
from p4reduce_lab.planning.commands import commands as planned
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster
from p4reduce_lab.planning.training import even_step
from p4reduce_switch.simple_switch.arguments import parse as parse_as_bmv2

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


# -- What the planner prints -----------------------------------------------------------------------


def planned_lines(kind: str, ranks: int, *, one_interface: bool) -> dict[str, list[str]]:
    """The lines for each of the planner's ways to sum."""
    link = PlannedLink(1e9, 1e-5)
    trunk = link if one_interface else None
    cluster = Cluster(ranks, link, switch=SWITCHES[kind], trunk=trunk)
    advice = advise(Question(cluster, even_step(0.1, 500_000, 250_000)))
    return {option.name: planned(advice, option) for option in advice.options}


def check_planned(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parse all lines as the programs and the library do. Returns the programs' names."""
    programs = []
    for line in lines:
        if line.startswith("#") or line == ". ./net.sh":
            continue
        program, *arguments = shlex.split(line.removeprefix("P4REDUCE_LANES=64 "))
        programs.append(program)
        if program in COMMANDS:
            parse([program, *arguments])
        elif program == "simple_switch_grpc":
            assert parse_as_bmv2(arguments).interface
        elif program == "export":
            settings = dict(one.split("=", 1) for one in arguments)
            with monkeypatch.context() as patched:
                for name, value in settings.items():
                    patched.setenv(name, value.replace("LEAF:PORT", "10.0.0.9:7001"))
                found = switch_addresses(None, None, Placement(1, 4, 0), "job")
            [serve] = [one for one in lines if "p4reduce-controller serve" in one]
            assert [one.switch for one in found if one.switch] == re.findall(r"(\w+)=ADD", serve)
        else:
            assert program == "torchrun", line
            if importlib.util.find_spec("torch") is not None:
                import_module("torch.distributed.run").parse_args(arguments)
    return programs


@pytest.mark.parametrize("one_interface", [False, True], ids=["own-links", "one-interface"])
@pytest.mark.parametrize("kind", SWITCHES)
@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 100])
def test_every_line_of_the_planner_is_taken(
    kind: str, ranks: int, one_interface: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.toml").touch()
    for name, lines in planned_lines(kind, ranks, one_interface=one_interface).items():
        programs = check_planned(lines, monkeypatch)
        side_by_side = int(name.split()[0]) if "side by side" in name else 1
        if kind == "embedded-memory":
            assert programs == ["p4reduce-lab"]  # ports in shared memory are on one host
        elif kind == "embedded-udp" and side_by_side == 1 and ranks <= 64 and "tree" not in name:
            assert lines[1].startswith(f"p4reduce-lab deploy -n {ranks} --host ADDRESS ")
        else:
            [serve] = [line for line in lines if "p4reduce-controller serve" in line]
            assert serve.count("--switch ") == (0 if "--topology" in serve else side_by_side)
        assert ("simple_switch_grpc" in programs) is (
            kind == "bmv2" and ranks <= 64 and "tree" not in name
        )


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_the_deployed_network_of_the_planner_sums(tmp_path: Path) -> None:
    """Its first line starts a network whose jobs have the slots that the planner found."""
    lines = planned_lines("embedded-udp", 2, one_interface=True)["one switch"]
    [line] = [line for line in lines if line.startswith("p4reduce-lab deploy")]
    words = shlex.split(line.replace("ADDRESS", "127.0.0.1"))
    slots = words[words.index("--slots") + 1]
    deployed = Launched(tmp_path, *words[1:])
    deployed.wait_for(r"net\.sh")
    script = (
        "import numpy, p4reduce\n"
        "with p4reduce.init() as comm:\n"
        "    total = comm.allreduce(numpy.full(3000, comm.rank + 1, numpy.float32))\n"
        "    print(comm.slots, total[-1])\n"
    )
    (tmp_path / "train.py").write_text(script)
    shell = '. ./net.sh; export P4REDUCE_WORLD_SIZE=2; P4REDUCE_RANK=$0 exec "$1" train.py'
    ranks = [
        subprocess.Popen(
            ["sh", "-c", shell, str(rank), sys.executable],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=DEADLINE)[0].split() for process in ranks]
    assert said == [[slots, "3.0"]] * 2
    deployed.process.terminate()
    deployed.wait()
