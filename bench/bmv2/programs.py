# SPDX-License-Identifier: Apache-2.0
"""Two commits' programs side by side, on BMv2 and on the embedded switch, in turns.

The load of contributions.py on the program as it is and on one that was compiled earlier. It has to
have the same tables for a single switch, as those since the program was first written have.

    mkdir /tmp/earlier
    for f in p4reduce.json p4reduce.p4info.txtpb; do
        git show COMMIT:p4src/compiled/$f > /tmp/earlier/$f; done
    python -m bench.bmv2.programs /tmp/earlier [--turns 5] [--seconds 1.2]
        [--formats int32,int8] [--only BMv2] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from p4reduce.wire.format import Format
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program

from bench.bmv2.contributions import begin, measure
from bench.bmv2.repeated import in_turns, show

RANKS = 4
SLOTS = 32
KINDS = ("BMv2, veths", "embedded, sockets")


def earlier_program(folder: Path) -> PipelineProgram:
    """Load a program that was compiled earlier; ends this process where it is not there."""
    paths = [folder / name for name in ("p4reduce.json", "p4reduce.p4info.txtpb")]
    if missing := [str(path) for path in paths if not path.is_file()]:
        sys.exit(f"there is no {', '.join(missing)}; bench/bmv2/programs.py says how to get it")
    return load_program(*paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("earlier", type=Path, help="folder of the other program, compiled")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.2, help="for each measurement")
    parser.add_argument("--formats", default="int32", help="of the lanes, with commas between")
    parser.add_argument("--only", default="", help="switches whose name has this")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    programs = {"earlier": earlier_program(options.earlier), "now": load_program()}
    host = begin()
    rows = []
    formats = [Format[name.upper()] for name in options.formats.split(",")]
    for kind, lanes in itertools.product(KINDS, formats):
        if options.only not in kind:
            continue
        cases = {
            f"{kind}, {lanes.name.lower()}: {name}": partial(
                measure, kind, RANKS, SLOTS, True, options.seconds, program, lanes
            )
            for name, program in programs.items()
        }
        results = in_turns(cases, options.turns)
        show(results)
        rows += [asdict(result) for result in results]
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": host, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
