# SPDX-License-Identifier: Apache-2.0
"""How long ranks take to join, by Gloo and by p4reduce with nothing set, on hosts in namespaces.

From the start of torchrun to the end of the first all-reduce, of the slowest rank. The runs of both
are interleaved. Each host is a namespace of this machine, and all share its cores.

    python -m bench.pytorch.joining [--hosts 2] [--ranks-per-host 1] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks.home import HomeNetwork

from bench.pytorch.on_hosts import run_on_hosts

CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
RANK = "rank"
BACKENDS = ("gloo", "p4reduce")
# Installed packages have their bytecode. Those of a checkout get it in the first run.
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


def be_rank(backend: str, begun: float) -> None:
    """Join, and print how long it took."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    dist.all_reduce(torch.ones(1000))
    print(f"joined {time.monotonic() - begun}", flush=True)
    dist.destroy_process_group()


def join(network: HomeNetwork, backend: str, each: int) -> float:
    """Return the seconds of the slowest rank."""
    begun = time.monotonic()
    program = ["-m", "bench.pytorch.joining", RANK, backend, str(begun)]
    lines = run_on_hosts(network, program, WITH_BYTECODE, each=each)
    took = [float(line.split()[1]) for line in lines if line.startswith("joined ")]
    if len(took) != each * len(network.names):
        raise LabError(f"{len(took)} ranks have joined:\n" + "\n".join(lines))
    return max(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    took: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    try:
        with HomeNetwork(options.hosts) as network:
            for run in range(options.runs + 1):
                for backend in BACKENDS:
                    seconds = join(network, backend, options.ranks_per_host)
                    if run:  # the first one fills caches
                        took[backend].append(seconds)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    for backend, each in took.items():
        print(f"{backend}: {statistics.median(each):.1f} s ({min(each):.1f} to {max(each):.1f})")
    more = [ours - gloo for gloo, ours in zip(took["gloo"], took["p4reduce"], strict=True)]
    print(f"p4reduce takes {statistics.median(more):.1f} s more (median of {options.runs} runs)")


if __name__ == "__main__":
    if sys.argv[1:2] == [RANK]:
        be_rank(sys.argv[2], float(sys.argv[3]))
    else:
        main()
