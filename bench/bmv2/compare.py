# SPDX-License-Identifier: Apache-2.0
"""Contributions per second in turns: of two switches, of wide words, or of two programs.

    python -m bench.bmv2.compare [--of targets] [--turns 3] [--seconds 1.2] [--json FILE]
    python -m bench.bmv2.compare --of words
    python -m bench.bmv2.compare --of programs --earlier /tmp/earlier --turns 25

All have the load of bench/switch/ports.py: four ranks with a block of 256 int32 lanes under way in
each of 32 slots.

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
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.switches.bmv2 import unavailable

from bench.measure import in_turns, there_and_back
from bench.program import Option, Row, read_options, run, tell
from bench.switch.job import RANKS, SLOTS
from bench.switch.ports import BLOCK, BMV2, Case, contribute, need_load

BY_BMV2 = Case("veth", BMV2)
TARGETS = {
    "BMv2, veths": BY_BMV2,
    "embedded, veths": Case("veth"),
    "embedded, sockets": Case("unix"),
}
VARIANTS = Path(__file__).resolve().parent / "one_lane"
SOURCES = VARIANTS.parents[2] / "p4src" / "compiled" / "sources.sha256"

Measure = Callable[[], Row]


def targets(options: argparse.Namespace) -> dict[str, Measure]:
    """Both switches."""
    return {
        name: partial(contribute, case, options.seconds, RANKS, SLOTS)
        for name, case in TARGETS.items()
    }


def of_programs(
    options: argparse.Namespace, some: dict[str, PipelineProgram]
) -> dict[str, Measure]:
    """Programs on BMv2."""
    return {
        name: partial(contribute, BY_BMV2, options.seconds, RANKS, SLOTS, program)
        for name, program in some.items()
    }


def words(options: argparse.Namespace) -> dict[str, Measure]:
    """A register for each lane, and wide words."""
    if (VARIANTS / "sources.sha256").read_text() != SOURCES.read_text():
        raise UnavailableError("older than p4src/: run python -m bench.bmv2.one_lane.compile")
    some = {
        "a register a lane": load_variant("one_lane"),
        "a register a lane, no overflow": load_variant("one_lane_bare"),
        "words of 64 lanes": load_program(),
    }
    return of_programs(options, some)


def load_variant(name: str) -> PipelineProgram:
    """A program of bench/bmv2/one_lane/."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, f"{name}.{suffix}") for suffix in ("json", "p4info.txtpb")]
        for path in paths:
            path.write_bytes(gzip.decompress((VARIANTS / f"{path.name}.gz").read_bytes()))
        return load_program(*paths)


def programs(options: argparse.Namespace) -> dict[str, Measure]:
    """Two commits' programs. Raises LabError: there is no earlier one."""
    if options.earlier is None:
        raise LabError("--earlier FOLDER is needed: where the other program is, compiled")
    names = ("p4reduce.json", "p4reduce.p4info.txtpb")
    earlier = load_program(*(options.earlier / name for name in names))
    return of_programs(options, {"earlier": earlier, "now": load_program()})


def compared(cases: Mapping[str, Measure], turns: int) -> Iterator[Row]:
    """Measure cases in turns, and sum up: medians, and ratios to the first case in each turn.

    `rate_ratio` is of the rates, `thread_us_ratio` of the busiest threads, which other load on the
    machine hardly changes. A quarter of the turns had a ratio below `thread_us_ratio_low`, and a
    quarter had one above `thread_us_ratio_high`: they say what this many turns can tell.
    """
    found = in_turns(cases, turns, order=there_and_back)
    first = found[next(iter(cases))]
    for name, rows in found.items():
        by_thread, by_rate = (
            sorted(one[key] / other[key] for one, other in zip(rows, first, strict=True))
            for key in ("busiest_thread_us", "frames_per_second")
        )
        rates = [row["frames_per_second"] for row in rows]
        rate = statistics.median(rates)
        yield {
            "name": name,
            "contributions_per_second": rate,
            "slowest": min(rates),
            "fastest": max(rates),
            "lanes_per_second": len(BLOCK) * rate,
            "rate_ratio": statistics.median(by_rate),
            "switch_us": statistics.median(row["switch_us"] for row in rows),
            "busiest_thread_us": statistics.median(row["busiest_thread_us"] for row in rows),
            "thread_us_ratio": statistics.median(by_thread),
            "thread_us_ratio_low": by_thread[len(by_thread) // 4],
            "thread_us_ratio_high": by_thread[-1 - len(by_thread) // 4],
        }


def main() -> None:
    measures = {"targets": targets, "words": words, "programs": programs}
    options = read_options(
        __doc__,
        of=Option("targets", choices=tuple(measures)),
        turns=3,
        seconds=Option(1.2, "for each measurement"),
        earlier=Option(None, "folder of the other program, compiled", Path),
    )
    if reason := unavailable():
        raise UnavailableError(reason)
    need_load()
    tell(options, compared(measures[options.of](options), options.turns))


if __name__ == "__main__":
    run(main)
