# SPDX-License-Identifier: Apache-2.0
"""BMv2 and the embedded switch side by side: contributions per second, in turns.

The same frames by the same load (see contributions.py): four ranks with a block of 256 int32
lanes under way in each of 32 slots, over veth pairs for both, and for the embedded switch over its
Unix sockets as well.

    python -m bench.bmv2.targets [--turns 3] [--seconds 1.2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.bmv2.contributions import begin, measure
from bench.bmv2.repeated import in_turns, show

RANKS = 4
SLOTS = 32
KINDS = ("BMv2, veths", "embedded, veths", "embedded, sockets")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="for each measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    host = begin()
    cases = {kind: partial(measure, kind, RANKS, SLOTS, True, options.seconds) for kind in KINDS}
    results = in_turns(cases, options.turns)
    show(results)
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
