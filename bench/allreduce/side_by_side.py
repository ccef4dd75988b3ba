# SPDX-License-Identifier: Apache-2.0
"""What a further switch beside the first one gains where links are the limit.

Each worker is a Mininet host with a link of the same rate to each switch. The rate is low, so
that neither worker nor switch has enough to do to be the limit. All numbers of switches take
turns; shown are the medians.

    python -m bench.allreduce.side_by_side [--switches 1 2 4] [--workers 2] [--bandwidth 20]
        [--switch embedded|bmv2] [--turns 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from p4reduce_lab.errors import UnavailableError

from bench.allreduce.allreduce import CANNOT_RUN, Result, measure
from bench.machine import describe, machine

SIZE = 4 << 20  # bytes
SLOTS = {"embedded": 64, "bmv2": 32}
DTYPE = "float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--switches", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bandwidth", type=float, default=20.0, help="of each link, in Mbit/s")
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    found: dict[int, list[Result]] = {number: [] for number in options.switches}
    try:
        for _ in range(options.turns):
            for number, results in found.items():
                results += [
                    result
                    for result in measure(
                        options.switch,
                        options.workers,
                        [SIZE],
                        SLOTS[options.switch],
                        options.bandwidth,
                        number,
                    )
                    if DTYPE in result.name
                ]
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    host = machine()
    print(f"{describe(host)}; load {os.getloadavg()[0]:.1f}")
    rows = []
    for results in found.values():
        typical = median(result.goodput_mbit_s for result in results)
        rows.append(replace(results[0], goodput_mbit_s=typical, share_of_bound=None))
    for number, row in zip(found, rows, strict=True):
        gain = row.goodput_mbit_s / rows[0].goodput_mbit_s
        print(f"{number} switches: {row.goodput_mbit_s:7.2f} Mbit/s a worker, {gain:.2f} times")
    if options.json is not None:
        report = {"machine": host, "results": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
