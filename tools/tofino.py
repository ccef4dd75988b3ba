# SPDX-License-Identifier: Apache-2.0
"""Compile and assemble p4src/tofino2.p4, and write what it takes of a chip into docs/tofino.md.

Needs p4c's back end for Tofino (`p4c-barefoot`, `bfas`) on PATH. The assembler refuses what the
compiler lets pass, so both run.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_lab.progress import waiting

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "tofino2.p4"
PAGE = ROOT / "docs" / "tofino.md"
COMPILER, ASSEMBLER = "p4c-barefoot", "bfas"
COMPILER_MINUTES = 15.0
# p4c takes all memory from libgc, whose versions 8.0 and 8.2 can hang when a thread starts there
# (https://github.com/bdwgc/bdwgc/issues/816). With one marker it starts none.
ONE_THREAD = {"GC_MARKERS": "1"}
# The assembler's word for a state of the parser that no frame reaches: what the fault in the
# compiler leads to (docs/tofino.md).
UNREACHABLE = "Can't match parser state"
# Warnings that have an answer; any other one is an error.
ANSWERED = (
    "unused",  # some numbers of the wire format are for the workers only
    "unknown",  # @id and @controller_header are for P4Runtime, which reads them
    "uninitialized-use",  # a step's body is looked at without the action that comes before it
    "uninitialized-out-param",  # @pa_auto_init_metadata sets what the parser does not
)
_LOGS = ("resources.json", "power.json", "phv.json")
_TABLE = re.compile(r"(<!-- tofino -->\n).*?(<!-- /tofino -->)", re.DOTALL)
_STAGE = re.compile(r"^stage \d+ (ingress|egress):", re.MULTILINE)


class TofinoError(Exception):
    """The compiler or the assembler does not take the program, or is not there."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler and the assembler say of a program.

    Attributes:
        version: of the compiler.
        rows: what is taken, by resource: how much, and of how much (0: of nothing in particular).
        binary: bytes of the configuration for the chip.
        p4info: what P4Runtime sees of the program, as text.
    """

    version: str
    rows: Mapping[str, tuple[int, int]]
    binary: int
    p4info: str

    def table(self) -> str:
        """Return the page's table."""
        lines = ["| resource | used | of |", "|---|---|---|"]
        for name, (used, of) in self.rows.items():
            lines.append(f"| {name} | {used:,} | {f'{of:,}' if of else '–'} |")
        return "\n".join([*lines, "", f"p4c-barefoot {self.version}.", ""])


def missing() -> str:
    """Return which of the two programs is not on PATH; "" if both are."""
    return ", ".join(name for name in (COMPILER, ASSEMBLER) if shutil.which(name) is None)


def compile_program(scratch: Path, sources: Path = ROOT / "p4src") -> Compiled:
    """Compile and assemble the program into `scratch`.

    Raises:
        TofinoError: one of the programs is missing or fails; has the end of what it says.
    """
    if lacking := missing():
        raise TofinoError(
            f"{lacking} not on PATH: build p4c with -DENABLE_TOFINO=ON "
            "(https://github.com/p4lang/p4c/tree/main/backends/tofino)"
        )
    target = ("--target", "tofino2")
    p4info = scratch.with_name(f"{scratch.name}.p4info.txtpb")
    # -g and --verbose: the logs that are read below.
    options = ["--arch", "t2na", "-D__TARGET_TOFINO__=2", "-g", "--verbose", "-Werror"]
    options += [f"--Wdisable={kind}" for kind in ANSWERED]
    options += ["--p4runtime-files", str(p4info), "-o", str(scratch)]
    _run(sources, COMPILER, *target, *options, PROGRAM)
    pipe = scratch / "pipe"
    made = scratch / "assembled"
    (made / "logs").mkdir(parents=True)
    assembly = (pipe / PROGRAM).with_suffix(".bfa")
    said = _run(pipe, ASSEMBLER, *target, "-o", str(made), assembly.name)
    if UNREACHABLE in said:
        raise TofinoError(f"{said}\nThe parser matches nothing: docs/tofino.md, 'The compiler'")
    logs = {name: json.loads((pipe / "logs" / name).read_text()) for name in _LOGS}
    version = json.loads((scratch / "manifest.json").read_text())["compiler_version"]
    binary = (made / PROGRAM).with_suffix(".bin").stat().st_size
    rows = dict(_rows(logs, assembly.read_text()))
    return Compiled(version, rows, binary, p4info.read_text())


def _run(directory: Path, *command: str) -> str:
    """Return what a program says; it must succeed."""
    before = _seconds_of_children()
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **ONE_THREAD},
            capture_output=True,
            text=True,
            timeout=60 * COMPILER_MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        used = _seconds_of_children() - before
        raise TofinoError(
            f"{command[0]} was ended after {COMPILER_MINUTES:g} minutes, in which it used a "
            f"processor for {used:.0f} s"
        ) from None
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise TofinoError(f"{command[0]} ended with {done.returncode}:\n{said[-3000:]}")
    return said


def _seconds_of_children() -> float:
    """Return the processor time of programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _rows(logs: Mapping[str, Any], assembly: str) -> Iterator[tuple[str, tuple[int, int]]]:
    resources = logs["resources.json"]["resources"]
    mau = resources["mau"]
    stages = mau["mau_stages"]
    for gress in ("ingress", "egress"):
        taken = _STAGE.findall(assembly).count(gress)
        yield f"stages of {gress} with tables", (taken, mau["nStages"])
    alus = [one for stage in stages for one in stage["meter_alus"]["meters"]]
    registers = sum(any(use["used_for"] == "stateful_ram" for use in one["usages"]) for one in alus)
    yield "stateful ALUs for registers", (registers, 4 * mau["nStages"])
    yield "the same ALUs for meters", (len(alus) - registers, 4 * mau["nStages"])
    for name, group, used, second in (
        ("SRAM blocks", "rams", "srams", "nColumns"),
        ("map RAM blocks", "map_rams", "maprams", "nUnits"),
        ("TCAM blocks", "tcams", "tcams", "nColumns"),
    ):
        all_of = mau["nStages"] * stages[0][group]["nRows"] * stages[0][group][second]
        yield name, (sum(len(stage[group][used]) for stage in stages), all_of)
    containers = [
        (one["container_type"], one["bit_width"]) for one in logs["phv.json"]["containers"]
    ]
    for kind in ("normal", "mocha"):
        for there in resources["phv_containers"][kind]:
            bits = there["width"]
            used_up = containers.count((kind, bits))
            yield f"{kind} containers of {bits} bits", (used_up, there["units"])
    for parser in resources["parser"]["parsers"]:
        yield f"entries of the {parser['gress']} parser", (len(parser["states"]), parser["nStates"])
    for one in logs["power.json"]["total_latency"]:
        if one["gress"] != "ghost":
            yield f"cycles through {one['gress']}", (one["latency"], 0)


def main() -> None:
    try:
        with tempfile.TemporaryDirectory() as scratch, waiting(f"p4c compiles {PROGRAM}"):
            compiled = compile_program(Path(scratch, "made"))
    except TofinoError as error:
        sys.exit(str(error))
    print(compiled.table())
    PAGE.write_text(_TABLE.sub(rf"\g<1>{compiled.table()}\g<2>", PAGE.read_text()))
    print(f"{PAGE}: written; a configuration of {compiled.binary:,} bytes")


if __name__ == "__main__":
    main()
