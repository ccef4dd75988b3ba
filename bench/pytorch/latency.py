# SPDX-License-Identifier: Apache-2.0
"""How long a small all-reduce takes on hosts with nothing deployed, by Gloo and by the switches.

Each host is a namespace with a link to an Ethernet switch, and all share this machine's cores. Both
take turns in one job, with some calls in a row each, as the OSU benchmarks make them. The first
calls of a row are not counted: their ranks leave the other's last call at different times. Shown
are medians of the slowest rank's times.

    python -m bench.pytorch.latency [--hosts 4] [--rate 1000] [--turns 200]
"""

from __future__ import annotations

from functools import partial
from typing import Any

from p4reduce_lab.networks.home import HomeNetwork

from bench.measure import in_turns, spread, timed
from bench.program import Option, read_options, run
from bench.pytorch.on_hosts import run_on_hosts

SIZES = {"1 KB": 256, "64 KB": 16_384, "1 MB": 262_144}  # elements of float32
ROW = 20  # calls of one after the other
LEFT_OUT = 5  # of them, at the beginning


def rank(turns: int) -> dict[str, dict[str, float]]:
    """Time both in turns. Return the median of each by size, in milliseconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    groups: dict[str, Any] = {"gloo": dist.new_group(backend="gloo"), "p4reduce": None}
    found = {}
    for size, elements in SIZES.items():
        share, tensor = torch.randn(elements), torch.empty(elements)

        def row(group: Any, tensor: Any = tensor, share: Any = share) -> list[float]:
            times = []
            for _ in range(ROW):
                tensor.copy_(share)  # sums of sums would soon be infinite
                times.append(timed(lambda: dist.all_reduce(tensor, group=group)))
            return times[LEFT_OUT:]

        ways = {name: partial(row, group) for name, group in groups.items()}
        rows = in_turns(ways, -(-turns // (ROW - LEFT_OUT)), warm_up=1)
        slowest = torch.tensor([rows[name] for name in groups], dtype=torch.float64).flatten(1)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        medians = 1000 * slowest.median(dim=1).values
        found[size] = dict(zip(groups, medians.tolist(), strict=True))
    dist.destroy_process_group()
    return found


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        hosts=4,
        rate=Option(1000.0, "of each link, in Mbit/s"),
        turns=200,
        runs=Option(5, "jobs, whose medians are shown"),
    )
    ratios: dict[str, list[float]] = {size: [] for size in SIZES}
    with HomeNetwork(options.hosts, options.rate) as network:
        for _ in range(options.runs):
            for size, ms in run_on_hosts(network, rank, turns=options.turns)[0].items():
                ratios[size].append(ms["gloo"] / ms["p4reduce"])
                print(f"{size}: Gloo {ms['gloo']:.2f} ms, p4reduce {ms['p4reduce']:.2f} ms")
    for size, each in ratios.items():
        print(f"{options.hosts} hosts, {size}: {spread(each, '.2f', ' times Gloo speed')}")


if __name__ == "__main__":
    run(main)
