# SPDX-License-Identifier: Apache-2.0
"""Logistic regression on Spark: sums of gradients by the switch, treeAggregate and MLlib.

Each size is one run of `examples/spark_logistic.py`, in which the three fit the same cached data
one after the other. A *sum* is one pass over the rows: weights there, gradients and loss back.
Times of the switch and of treeAggregate are medians; MLlib's is the mean over its whole fit.

    python -m bench.spark.logistic [--features 1000 32000 1000000] [--docs]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from p4reduce_lab.measured.machine import describe, machine

from bench.pages import DOCS
from bench.program import read_options, run, tell_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_logistic.py"
SIZES = (1_000, 32_000, 1_000_000)
WAYS = ("the switch", "treeAggregate", "MLlib")
HEAD = ("coefficients", *(f"{way}, ms per sum" for way in WAYS), "off MLlib's by")
TIMEOUT = 1200.0  # seconds, of one size


def row(features: int, master: str) -> list[str]:
    """One line of the table: run one size."""
    command = [sys.executable, str(EXAMPLE), "--features", str(features), "--master", master]
    # Executors take the first python3 of PATH, which need not be this one.
    own = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=own
    )
    off = re.search(r"off MLlib's by at most (\S+)", done.stdout)
    times = [re.search(rf"{way}: \d+ sums, (\S+) ms each", done.stdout) for way in WAYS]
    if done.returncode != 0 or off is None:
        raise SystemExit(f"{EXAMPLE.name} failed: {(done.stdout + done.stderr)[-4000:]}")
    return [f"{features:,}", *(one[1] if one else "–" for one in times), off[1]]


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs="docs/spark.md",
        features=list(SIZES),
        master="local-cluster[2,1,1024]",
    )
    print(f"{describe(machine())}\n{options.master}, 2 ranks\n")
    cells = [row(features, options.master) for features in options.features]
    tell_table(options, DOCS / "spark.md", "spark-logistic", HEAD, cells)


if __name__ == "__main__":
    run(main)
