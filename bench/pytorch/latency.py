# SPDX-License-Identifier: Apache-2.0
"""How long a small all-reduce takes on hosts with nothing deployed, by Gloo and by the switches.

Each host is a namespace with a link to an Ethernet switch, and all share this machine's cores. Both
take turns in one job, with some calls in a row each, as the OSU benchmarks make them. The first
calls of a row are not counted: their ranks leave the other's last call at different times. Shown
are medians of the slowest rank's times.

    python -m bench.pytorch.latency [--hosts 4] [--rate 1000] [--turns 200]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.networks.home import HomeNetwork

from bench.pytorch.on_hosts import run_on_hosts

CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
RANK = "rank"
SIZES = {"1 KB": 256, "64 KB": 16_384, "1 MB": 262_144}  # elements of float32
ROW = 20  # calls of one after the other
LEFT_OUT = 5  # of them, at the beginning


def be_rank(turns: int) -> None:
    """Time both in turns. Rank 0 prints the median of each, in milliseconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    groups: dict[str, Any] = {"gloo": dist.new_group(backend="gloo"), "p4reduce": None}
    for size, elements in SIZES.items():
        share = torch.randn(elements)
        tensor = torch.empty(elements)
        took: dict[str, list[float]] = {name: [] for name in groups}
        for row in range(1 + -(-turns // (ROW - LEFT_OUT))):
            for name, group in groups.items():
                for number in range(ROW):
                    tensor.copy_(share)  # sums of sums would soon be infinite
                    began = time.perf_counter()
                    dist.all_reduce(tensor, group=group)
                    if row and number >= LEFT_OUT:
                        took[name].append(time.perf_counter() - began)
        slowest = torch.tensor([took[name] for name in groups], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            medians = 1000 * slowest.median(dim=1).values
            found = dict(zip(groups, medians.tolist(), strict=True))
            print(json.dumps({"size": size, **found}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1000.0, help="of each link, in Mbit/s")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5, help="jobs, whose medians are shown")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {size: [] for size in SIZES}
    try:
        with HomeNetwork(options.hosts, options.rate) as network:
            for _ in range(options.runs):
                program = ["-m", "bench.pytorch.latency", RANK, str(options.turns)]
                printed = [line for line in run_on_hosts(network, program) if line.startswith("{")]
                for found in map(json.loads, printed):
                    gloo, ours = found["gloo"], found["p4reduce"]
                    ratios[found["size"]].append(gloo / ours)
                    print(f"{found['size']}: Gloo {gloo:.2f} ms, p4reduce {ours:.2f} ms")
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))
    for size, each in ratios.items():
        print(
            f"{options.hosts} hosts, {size}: {statistics.median(each):.2f} times Gloo's speed "
            f"({min(each):.2f} to {max(each):.2f})"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == [RANK]:
        be_rank(int(sys.argv[2]))
    else:
        main()
