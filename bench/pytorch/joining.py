# SPDX-License-Identifier: Apache-2.0
"""How long ranks take to join, by Gloo and by p4reduce with nothing set, on hosts in namespaces.

From the start of torchrun to the end of the first all-reduce, of the slowest rank. The runs of both
are interleaved. Each host is a namespace of this machine, and all share its cores.

    python -m bench.pytorch.joining [--hosts 2] [--ranks-per-host 1] [--runs 5]
"""

from __future__ import annotations

import statistics
import time
from functools import partial

from p4reduce_lab.networks.home import HomeNetwork

from bench.measure import in_turns, spread
from bench.program import read_options, run
from bench.pytorch.joining_rank import join
from bench.pytorch.on_hosts import run_on_hosts

BACKENDS = ("gloo", "p4reduce")
# Installed packages have their bytecode. Those of a checkout get it in the first run.
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


def seconds(network: HomeNetwork, each: int, backend: str) -> float:
    """Return the seconds of the slowest rank."""
    begun = time.monotonic()
    took = run_on_hosts(network, join, WITH_BYTECODE, each=each, backend=backend, begun=begun)
    return float(max(took))


def main() -> None:
    options = read_options(__doc__, to_json=False, hosts=2, ranks_per_host=1, runs=5)
    with HomeNetwork(options.hosts) as network:
        ways = {name: partial(seconds, network, options.ranks_per_host, name) for name in BACKENDS}
        took = in_turns(ways, options.runs, warm_up=1)  # the first one fills caches
    for backend, each in took.items():
        print(f"{backend}: {spread(each, unit=' s')}")
    more = [ours - gloo for gloo, ours in zip(took["gloo"], took["p4reduce"], strict=True)]
    print(f"p4reduce takes {statistics.median(more):.1f} s more (median of {options.runs} runs)")


if __name__ == "__main__":
    run(main)
