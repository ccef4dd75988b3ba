# SPDX-License-Identifier: Apache-2.0
"""Contributions per second in turns: of two switches, of wide words, or of two programs.

    python -m bench.bmv2.compare [--of targets] [--turns 3] [--seconds 1.2] [--json FILE]
    python -m bench.bmv2.compare --of words
    python -m bench.bmv2.compare --of programs --earlier /tmp/earlier --turns 25
        [--formats int32 int8] [--only BMv2]

All have the load of contributions.py: four ranks with a block of 256 int32 lanes under way in each
of 32 slots.

- targets: BMv2 and the embedded switch over veth pairs, and that over its Unix sockets.
- words: what the wide words gain on BMv2: four registers of 2,048 bits, or one of 32 for each lane.
  The variants of the program, in bench/bmv2/one_lane/, differ in how lanes are parsed, kept and
  added only.
- programs: the program as it is, and one that was compiled earlier. It has to have the same tables
  for a single switch, as those since the program was first written have:

      mkdir /tmp/earlier
      for f in p4reduce.json p4reduce.p4info.txtpb; do
          git show COMMIT:p4src/compiled/$f > /tmp/earlier/$f; done
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from p4reduce.wire.format import Format
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_lab.errors import LabError, UnavailableError

from bench.bmv2.contributions import compared, measure, need_bmv2
from bench.program import Option, Row, read_options, run, tell

TARGETS = ("BMv2, veths", "embedded, veths", "embedded, sockets")
VARIANTS = Path(__file__).resolve().parent / "one_lane"
SOURCES = VARIANTS.parents[2] / "p4src" / "compiled" / "sources.sha256"


def targets(options: argparse.Namespace) -> Iterator[Row]:
    """Both switches."""
    cases = {kind: partial(measure, kind, options.seconds) for kind in TARGETS}
    return compared(cases, options.turns)


def words(options: argparse.Namespace) -> Iterator[Row]:
    """A register for each lane, and wide words; also by lanes per second."""
    if (VARIANTS / "sources.sha256").read_text() != SOURCES.read_text():
        raise UnavailableError("older than p4src/: run python -m bench.bmv2.one_lane.compile")
    programs = {
        "a register a lane": load_variant("one_lane"),
        "a register a lane, no overflow": load_variant("one_lane_bare"),
        "words of 64 lanes": load_program(),
    }
    cases = {
        name: partial(measure, TARGETS[0], options.seconds, program)
        for name, program in programs.items()
    }
    for row in compared(cases, options.turns):
        lanes = Format.INT32.lanes * row["contributions_per_second"]
        yield {**row, "lanes_per_second": lanes}


def load_variant(name: str) -> PipelineProgram:
    """A program of bench/bmv2/one_lane/."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, f"{name}.{suffix}") for suffix in ("json", "p4info.txtpb")]
        for path in paths:
            path.write_bytes(gzip.decompress((VARIANTS / f"{path.name}.gz").read_bytes()))
        return load_program(*paths)


def programs(options: argparse.Namespace) -> Iterator[Row]:
    """Two commits' programs."""
    both = {"earlier": earlier_program(options.earlier), "now": load_program()}
    kinds = [kind for kind in (TARGETS[0], TARGETS[2]) if options.only in kind]
    for kind, name in itertools.product(kinds, options.formats):
        cases = {
            f"{kind}, {name}: {which}": partial(
                measure, kind, options.seconds, program, Format[name.upper()]
            )
            for which, program in both.items()
        }
        yield from compared(cases, options.turns)


def earlier_program(folder: Path | None) -> PipelineProgram:
    """Load a program that was compiled earlier. Raises LabError: it is not there."""
    if folder is None:
        raise LabError("--earlier FOLDER is needed: where the other program is, compiled")
    paths = [folder / name for name in ("p4reduce.json", "p4reduce.p4info.txtpb")]
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise LabError(
            f"there is no {', '.join(missing)}; bench/bmv2/compare.py says how to get it"
        )
    return load_program(*paths)


def main() -> None:
    measures = {"targets": targets, "words": words, "programs": programs}
    options = read_options(
        __doc__,
        of=Option("targets", choices=tuple(measures)),
        turns=3,
        seconds=Option(1.2, "for each measurement"),
        earlier=Option(None, "folder of the other program, compiled", Path),
        formats=Option(["int32"], "of the lanes"),
        only=Option("", "switches whose name has this"),
    )
    need_bmv2()
    tell(options, measures[options.of](options))


if __name__ == "__main__":
    run(main)
