# SPDX-License-Identifier: Apache-2.0
"""The code blocks of pages, and how each is run.

A comment before a fenced block, which readers do not see, says what a test needs to know of it:

    <!-- run: WORDS
    SETUP
    -->

Words, separated by commas: `no: REASON` (it is not run), `exact` (numbers count in the output),
`unstable` (its output is not compared), `tries N` (a busy machine may change the output: one of N
runs must give exactly these lines, those with the same first word in this order), `save FILE` (the
block is kept as a file too), `pytest`, `ranks N`, `ok`, and what it needs: `root`, `bmv2`, `torch`,
`mpi`, `tshark`, `long`. SETUP runs before the block, in its language. An output line that begins
with "… " is the end of a line.

Markdown is read by markdown-it-py. Libraries that run Markdown's blocks (sybil, pytest-examples,
mktestdocs) take Python alone, or a shell without prompts and outputs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
LANGUAGES = ("console", "python", "sh")
WAITS = re.compile(r"rank \d+ of job \S+ has waited ")
SECONDS = 1200  # only ends what hangs
_COMMENT = re.compile(r"<!-- run: (?P<words>.*?)\n?(?:\n(?P<setup>.*?)\n?)?-->", re.DOTALL)
_PRELUDE = "import numpy as np\nimport p4reduce\n"
_COMM = "comm = p4reduce.init()\n"
_LINKED = ("Makefile", "docs", "examples", "exercises", "wireshark", "tests", "tools", "p4src")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        words: what the comment before it says, `no` with its reason.
        setup: code that runs first.
    """

    page: Path
    line: int
    language: str
    text: str
    words: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""

    @property
    def name(self) -> str:
        """For people: the page and the line of the block."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def missing(self) -> str:
        """What it needs and this machine has not; "" if it can run."""
        needs = {
            "root": os.geteuid() == 0,
            "bmv2": shutil.which("simple_switch_grpc"),
            "torch": find_spec("torch"),
            "mpi": shutil.which("mpirun") and find_spec("mpi4py"),
            "tshark": shutil.which("tshark"),
        }
        return ", ".join(need for need, there in needs.items() if need in self.words and not there)


def blocks_of(page: Path) -> Iterator[Block]:
    """All blocks of a page in Python or for a shell, in their order."""
    words: dict[str, str] = {}
    setup = ""
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "html_block" and (match := _COMMENT.search(token.content)):
            words, setup = _words(match["words"]), match["setup"] or ""
        elif token.type == "fence":
            language = token.info.strip()
            if language in LANGUAGES:
                line = (token.map or [0])[0] + 1
                yield Block(page, line, language, token.content, words, setup)
            words, setup = {}, ""


def _words(text: str) -> dict[str, str]:
    if text.startswith("no:"):
        return {"no": text[3:].strip()}
    pairs = (word.strip().partition(" ") for word in text.split(","))
    return {name: value for name, _, value in pairs}


def workplace(directory: Path) -> None:
    """Make a directory look like a checkout, so that what blocks write stays in it."""
    for name in (*_LINKED, ".venv", "pyproject.toml"):
        (directory / name).symlink_to(ROOT / name)


def run(block: Block, directory: Path, network: Mapping[str, str]) -> None:
    """Run a block and compare what it puts out.

    Args:
        block: of a page.
        directory: a `workplace`, which all blocks of a page share.
        network: the environment by which ranks find a running switch; console blocks start what
            they need themselves.

    Raises:
        AssertionError: it failed, or a line of its output is missing; has both.
    """
    if "save" in block.words:
        (directory / block.words["save"]).write_text(block.text)
    if block.language == "python":
        _run_python(block, directory, network)
    else:
        _run_console(block, directory)


def _run_python(block: Block, directory: Path, network: Mapping[str, str]) -> None:
    needs_comm = re.search(r"\bcomm\b", block.text + block.setup)
    makes_comm = re.search(r"\bcomm = |as comm\b", block.text + block.setup)
    code = _PRELUDE + (_COMM if needs_comm and not makes_comm else "")
    code += f"{block.setup}\n{block.text}"
    if "pytest" in block.words:
        file = directory / "test_block.py"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
        command += ["-c", os.devnull, file.name]
    else:
        file = directory / "block.py"
        ranks = block.words.get("ranks", "2")
        command = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", ranks, "--"]
        command += [sys.executable, file.name]
    file.write_text(block.text if "pytest" in block.words else code)
    _call(block, command, directory, network)


def _run_console(block: Block, directory: Path) -> None:
    commands, expected, ends = _session(block.text)
    script = "\n".join(["set -e", block.setup, *commands])
    for _ in range(int(block.words.get("tries", "1"))):
        output = _call(block, ["bash", "-c", script], directory, {})
        if _by_first_word(output.splitlines()) == _by_first_word(expected):
            return
    assert "tries" not in block.words, f"{block.name}: another output in each run; last:\n{output}"
    if "unstable" in block.words:
        return
    exact = "exact" in block.words
    lines = [_comparable(line, exact=exact) for line in output.splitlines()]
    absent = [line for line in expected if _comparable(line, exact=exact) not in lines]
    assert not absent, f"{block.name}: not in the output: {absent}\n{output}"
    rest = iter(lines)
    for end in ends:
        found = any(line.endswith(_comparable(end, exact=exact)) for line in rest)
        assert found, f"{block.name}: no line ends in {end!r}, or not in this order:\n{output}"


def _by_first_word(lines: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for line in lines:
        if WAITS.search(line):
            continue  # a busy machine starts the ranks one after the other
        groups.setdefault(line.split()[0] if line.strip() else "", []).append(line)
    return groups


def _session(text: str) -> tuple[list[str], list[str], list[str]]:
    """Commands, the lines that they put out, and the ends of lines that begin with "… ".

    All lines are commands where there is no prompt. Other lines with "…" are not compared.
    """
    if not re.search(r"^\$ ", text, re.MULTILINE):
        return text.splitlines(), [], []
    commands: list[str] = []
    expected: list[str] = []
    ends: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ ") or goes_on:
            commands.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
        elif line.startswith("… "):
            ends.append(line.removeprefix("… "))
        elif line.strip() and "…" not in line:
            expected.append(line)
    return commands, expected, ends


def _comparable(line: str, *, exact: bool) -> str:
    line = re.sub(r"\s+", " ", line).strip()
    return line if exact else re.sub(r"-?\d[\d,.]*(?:e[-+]\d+)?", "N", line)


def _call(block: Block, command: list[str], directory: Path, more: Mapping[str, str]) -> str:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("P4REDUCE_CON", "P4REDUCE_INT", "P4REDUCE_JOB", "PYTEST_", "MAKE"))
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**kept, **more, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        # What the block has left in the background would outlive the test.
        os.killpg(process.pid, signal.SIGTERM)
        said = (late.stdout or b"").decode(errors="replace")
        raise AssertionError(f"{block.name}: not over after {SECONDS} s\n{said}") from None
    finally:
        process.wait(SECONDS)
    assert process.returncode == 0, f"{block.name}: exit code {process.returncode}\n{output}"
    return output
