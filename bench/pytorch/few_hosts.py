# SPDX-License-Identifier: Apache-2.0
"""What a training step takes on a few hosts with nothing deployed: by DDP and by DiLoCo.

Each host is a namespace with a link to an Ethernet switch. The network has 25 million parameters in
six layers. A layer sleeps as if an accelerator computed, so hosts share this machine's cores for
sums only. All ways take turns in one job, some steps each; DiLoCo goes through whole periods, over
Gloo by torch's own averager. Shown are medians of the slowest rank's times.

    python -m bench.pytorch.few_hosts [--hosts 2 3] [--rate 1000] [--computing 200 600] [--turns 1]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from p4reduce_lab.networks.home import HomeNetwork

from bench.measure import in_turns, timed
from bench.pages import DOCS
from bench.program import Option, read_options, run, tell_table
from bench.pytorch.on_hosts import run_on_hosts

WIDTH, LAYERS = 2048, 6
EVERY = 64  # steps from one of DiLoCo's averages to the next
STEPS = 4  # of DDP in a turn
GLOO, FLOAT32, INT8 = "DDP, Gloo", "DDP, float32", "DDP, int8 with feedback"
DILOCO, GLOO_AVERAGES = f"DiLoCo every {EVERY}", f"averages every {EVERY}, Gloo"
TIMEOUT = 1800.0  # seconds


def rank(computing: float, turns: int) -> dict[str, list[float]]:
    """Return the seconds of a step by each way, in each turn. `computing`: ms of a step's sleep."""
    import torch
    import torch.distributed as dist
    from p4reduce.torch import LocalSGD, hooks
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.nn.parallel import DistributedDataParallel

    from bench.pytorch.layers import Layer

    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    ring = dist.new_group(backend="gloo")
    inputs = torch.randn(1, WIDTH)

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(*[Layer(WIDTH, computing / 3 / LAYERS) for _ in range(LAYERS)])

    def some_steps(model: Any, optimizer: Any, count: int, after: Callable[[], object]) -> float:
        def steps() -> None:
            for _ in range(count):
                optimizer.zero_grad(set_to_none=False)
                model(inputs).square().mean().backward()
                optimizer.step()
                after()

        took = torch.tensor([timed(steps, dist.barrier) / count], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took.item())

    def by_ddp(group: Any = None, *hook: Any) -> Callable[[], float]:
        model = DistributedDataParallel(
            network(), process_group=group, gradient_as_bucket_view=True
        )
        if hook:
            model.register_comm_hook(*hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return lambda: some_steps(model, optimizer, STEPS, lambda: None)

    def by_diloco() -> Callable[[], float]:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = LocalSGD(sgd, every=EVERY, outer_rate=0.7, outer_momentum=0.9)
        return lambda: some_steps(model, optimizer, EVERY, lambda: None)

    def by_averages() -> Callable[[], float]:
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
        averager = PeriodicModelAverager(EVERY, 0, process_group=ring)
        average = lambda: averager.average_parameters(model.parameters())  # noqa: E731
        return lambda: some_steps(model, sgd, EVERY, average)

    found = in_turns(
        {
            GLOO: by_ddp(ring),
            FLOAT32: by_ddp(),
            INT8: by_ddp(None, hooks.HookState(error_feedback=True), hooks.int8_hook),
            GLOO_AVERAGES: by_averages(),
            DILOCO: by_diloco(),
        },
        turns,
        warm_up=1,
    )
    dist.destroy_process_group()
    return found


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs="docs/few-hosts.md",
        hosts=[2, 3],
        rate=Option(1000.0, "of each link, in Mbit/s"),
        computing=Option([200.0, 600.0], "milliseconds that a step sleeps"),
        turns=1,
    )
    rows = []
    for hosts in options.hosts:
        with HomeNetwork(hosts, options.rate) as network:
            for computing in options.computing:
                found = run_on_hosts(
                    network, rank, timeout=TIMEOUT, computing=computing, turns=options.turns
                )[0]
                medians = [f"{1e3 * statistics.median(times):,.0f} ms" for times in found.values()]
                rows.append([str(hosts), f"{computing:g} ms", *medians])
    head = ["hosts", "sleep", *found]
    tell_table(options, DOCS / "few-hosts.md", "steps", head, rows)


if __name__ == "__main__":
    run(main)
