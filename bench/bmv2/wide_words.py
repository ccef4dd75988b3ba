# SPDX-License-Identifier: Apache-2.0
"""What the wide words gain on BMv2: four registers of 2,048 bits, or one of 32 for each lane.

The same load (see contributions.py) on the program and on variants of it that differ in how
lanes are parsed, kept and added only: bench/bmv2/one_lane/. Blocks have 256 int32 lanes.

    python -m bench.bmv2.wide_words [--turns 3] [--seconds 1.2] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program

from bench.bmv2.contributions import CANNOT_RUN, begin, measure
from bench.bmv2.repeated import in_turns, show

VARIANTS = Path(__file__).resolve().parent / "one_lane"
SOURCES = VARIANTS.parents[2] / "p4src" / "compiled" / "sources.sha256"
RANKS = 4
SLOTS = 32
LANES = 256


def load_variant(name: str) -> PipelineProgram:
    """A program of bench/bmv2/one_lane/."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, f"{name}.{suffix}") for suffix in ("json", "p4info.txtpb")]
        for path in paths:
            path.write_bytes(gzip.decompress((VARIANTS / f"{path.name}.gz").read_bytes()))
        return load_program(*paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="for each measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    host = begin()
    if (VARIANTS / "sources.sha256").read_text() != SOURCES.read_text():
        print("older than p4src/: run python -m bench.bmv2.one_lane.compile", file=sys.stderr)
        sys.exit(CANNOT_RUN)
    programs = {
        "a register a lane": load_variant("one_lane"),
        "a register a lane, no overflow": load_variant("one_lane_bare"),
        "words of 64 lanes": load_program(),
    }
    cases = {
        name: partial(measure, "BMv2, veths", RANKS, SLOTS, True, options.seconds, program)
        for name, program in programs.items()
    }
    results = in_turns(cases, options.turns)
    show(results)
    if options.json is not None:
        rows = [
            {
                **asdict(result),
                "lanes_per_second": LANES * result.contributions_per_second,
            }
            for result in results
        ]
        options.json.write_text(json.dumps({"machine": host, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
