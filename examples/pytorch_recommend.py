# SPDX-License-Identifier: Apache-2.0
"""A recommendation model in the shape of DLRM, with its embedding tables placed in four ways.

p4reduce-lab exec -n 4 -- python examples/pytorch_recommend.py --tables replicated

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019: a small network for the dense features, an embedding table for each categorical
one, the dot products of all pairs of vectors, and a network on top. Gradients of the networks are
summed by the switch. Of the tables there are these ways (``--tables``):

- ``dense``: each rank has all tables, and their whole gradients are summed.
- ``replicated``: the same, but only rows that any rank has looked up travel.
- ``rows``: rank r has rows r, r + n, ...; the switch adds the ranks' partial bags
  (reduce-scatter).
- ``split``: table t is on rank t mod n, and bags travel by torch's all-to-all.

The ranks share one batch, so losses and the AUC are those of one process but for rounding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import p4reduce.torch
import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DENSE = 8  # features that are numbers
BAG = 2  # categories of one sample in one table
ZIPF = 1.05  # exponent of how often categories occur
WIDTH = 64  # of an embedding
RATE = 0.05
TEST = 20_000  # samples


class Clicks:
    """Synthetic samples: each category has a hidden weight, and their sum decides the click.

    Args:
        tables: categorical features.
        rows: categories of each; their frequencies follow Zipf's law.
    """

    def __init__(self, tables: int, rows: int) -> None:
        draw = np.random.default_rng(1)
        share = np.arange(1, rows + 1) ** -ZIPF
        self._until = np.cumsum(share / share.sum())
        self._places = np.stack([draw.permutation(rows) for _ in range(tables)])
        self._weights = draw.normal(0, 1, (tables, rows))
        self._dense = draw.normal(0, 0.5, DENSE)

    def batch(self, seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return dense features (count, 8), categories (count, tables, 2) and clicks (count,)."""
        draw = np.random.default_rng([2, seed])
        tables, rows = self._weights.shape
        dense = draw.normal(0, 1, (count, DENSE))
        often = np.searchsorted(self._until, draw.random((count, tables, BAG)))
        which = np.arange(tables)[:, None]
        categories = self._places[which, often.clip(max=rows - 1)]
        score = self._weights[which, categories].mean(-1).sum(-1) + dense @ self._dense
        clicks = draw.random(count) < 1 / (1 + np.exp(-score))
        return (
            torch.tensor(dense, dtype=torch.float32),
            torch.tensor(categories),
            torch.tensor(clicks, dtype=torch.float32),
        )


def initial(table: int, rows: int) -> Tensor:
    """Return a table's first values, the same wherever its rows are; shape (rows, 64)."""
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(table)) * WIDTH**-0.5


class Whole(nn.Module):
    """All tables on this rank.

    Args:
        tables: how many.
        rows: of each.
        sparse: gradients have only the rows that were looked up.
    """

    def __init__(self, tables: int, rows: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                initial(table, rows), freeze=False, mode="sum", sparse=sparse
            )
            for table in range(tables)
        )

    def forward(self, categories: Tensor) -> Tensor:
        """Return a vector per sample and table, shape (samples, tables, 64)."""
        return torch.stack([bag(categories[:, t]) for t, bag in enumerate(self.bags)], 1)


def gathered(mine: Tensor) -> Tensor:
    """Return all ranks' tensors, one after the other along the first dimension."""
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine.contiguous())
    return torch.cat(every)


class ScatteredSum(torch.autograd.Function):
    """Reduce-scatter by the switch; its gradient is gathered from all ranks."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> Tensor:
        """Return the sum of this rank's part, shape (samples, ...) of (n * samples, ...)."""
        of_ranks = list(parts.chunk(dist.get_world_size()))
        mine = torch.empty_like(of_ranks[0])
        dist.reduce_scatter(mine, of_ranks)
        return mine

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return each rank's gradient for its own samples."""
        (mine,) = gradients
        return gathered(mine)


class Exchange(torch.autograd.Function):
    """All-to-all; its gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, sizes: list[int], wanted: list[int]) -> Tensor:
        """Send sizes[r] numbers to rank r, and return the wanted[r] numbers of each."""
        ctx.sizes, ctx.wanted = sizes, wanted
        found = given.new_empty(sum(wanted))
        dist.all_to_all_single(found, given.contiguous(), wanted, sizes)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of what was given."""
        back = gradients[0].new_empty(sum(ctx.sizes))
        dist.all_to_all_single(back, gradients[0].contiguous(), ctx.sizes, ctx.wanted)
        return back, None, None


class ByRows(nn.Module):
    """Every n-th row of each table on each of n ranks: often used ones are spread evenly."""

    def __init__(self, tables: int, rows: int) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.bags = nn.ModuleList()
        for table in range(tables):
            mine = initial(table, rows)[rank::size]
            nothing = torch.zeros(1, WIDTH)  # the row in place of other ranks' ones
            self.bags.append(
                nn.EmbeddingBag.from_pretrained(
                    torch.cat((mine, nothing)),
                    freeze=False,
                    mode="sum",
                    sparse=True,
                    padding_idx=len(mine),
                )
            )

    def forward(self, categories: Tensor) -> Tensor:
        """As `Whole.forward`; all ranks give as many samples."""
        rank, size = dist.get_rank(), dist.get_world_size()
        asked = gathered(categories)
        partial = []
        for table, bag in enumerate(self.bags):
            mine = asked[:, table] % size == rank
            partial.append(bag(torch.where(mine, asked[:, table] // size, bag.padding_idx)))
        vectors: Tensor = ScatteredSum.apply(torch.stack(partial, 1))
        return mean_of_ranks(vectors)


class ByTables(nn.Module):
    """Whole tables, each on one rank."""

    def __init__(self, tables: int, rows: int) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.owned = [list(range(owner, tables, size)) for owner in range(size)]
        self.bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(
                initial(table, rows), freeze=False, mode="sum", sparse=True
            )
            for table in self.owned[rank]
        )

    def forward(self, categories: Tensor) -> Tensor:
        """As `Whole.forward`; all ranks give as many samples."""
        count, size = len(categories), dist.get_world_size()
        mine = len(self.bags)
        asked = torch.empty(size * mine * count * BAG, dtype=categories.dtype)
        ask = torch.cat([categories[:, owned].flatten() for owned in self.owned])
        each = [len(owned) * count for owned in self.owned]
        dist.all_to_all_single(
            asked, ask, [mine * count * BAG] * size, [number * BAG for number in each]
        )
        of_ranks = asked.view(size * count, mine, BAG)
        pooled = [bag(of_ranks[:, place]) for place, bag in enumerate(self.bags)]
        answers = torch.stack(pooled, 1).flatten() if pooled else torch.empty(0, requires_grad=True)
        widths = [number * WIDTH for number in each]
        vectors = Exchange.apply(answers, [mine * count * WIDTH] * size, widths)
        parts = vectors.split(widths)
        found: list[Tensor] = [torch.empty(0)] * sum(map(len, self.owned))
        for owned, part in zip(self.owned, parts, strict=True):
            for place, table in enumerate(owned):
                found[table] = part.view(count, len(owned), WIDTH)[:, place]
        return mean_of_ranks(torch.stack(found, 1))


def mean_of_ranks(vectors: Tensor) -> Tensor:
    """Return the same; its gradient is divided by the ranks, as DDP does with those it sums."""
    if vectors.requires_grad:
        vectors.register_hook(lambda gradient: gradient / dist.get_world_size())
    return vectors


class Networks(nn.Module):
    """The dense features' network, dot products of all pairs of vectors, the network on top."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Return the log-odds of a click, shape (samples,)."""
        low = self.bottom(dense)
        every = torch.cat((low[:, None], vectors), 1)
        row, column = self.pairs
        dots = (every @ every.transpose(1, 2))[:, row, column]
        return self.top(torch.cat((low, dots), 1))[:, 0]


class Together(nn.Module):
    """Tables and networks as one module, which DDP has whole."""

    def __init__(self, tables: nn.Module, networks: nn.Module) -> None:
        super().__init__()
        self.tables, self.networks = tables, networks

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Return the log-odds of a click, shape (samples,)."""
        scores: Tensor = self.networks(dense, self.tables(categories))
        return scores


WAYS: dict[str, Callable[[int, int], nn.Module]] = {
    "dense": lambda tables, rows: Whole(tables, rows, sparse=False),
    "replicated": lambda tables, rows: Whole(tables, rows, sparse=True),
    "rows": ByRows,
    "split": ByTables,
}


def model_of(way: str, tables: int, rows: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model, and Adagrad for all of its parameters: one of those for sparse ones."""
    own = WAYS[way](tables, rows)
    if way in ("dense", "replicated"):
        model: nn.Module = DistributedDataParallel(Together(own, Networks(tables)))
    else:
        model = Together(own, DistributedDataParallel(Networks(tables)))
    return model, torch.optim.Adagrad(model.parameters(), lr=RATE)


def parts_of(*tensors: Tensor) -> list[Tensor]:
    """Return this rank's samples of a batch of all."""
    return [one.chunk(dist.get_world_size())[dist.get_rank()] for one in tensors]


def auc(model: nn.Module, clicks: Clicks) -> float:
    """Return the area under the ROC curve on samples that were not trained on."""
    dense, categories, clicked = clicks.batch(2**32 - 1, TEST)
    share = TEST // dist.get_world_size()
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    with torch.no_grad():
        scores = gathered(model(dense[mine], categories[mine]))
    return float(roc_auc_score(clicked[: len(scores)], scores))


def main() -> None:
    """Trains, and prints losses, the AUC, bytes and time of a step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", choices=WAYS, default="replicated", dest="way")
    parser.add_argument("--count", type=int, default=4, help="embedding tables")
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--batch", type=int, default=1024, help="samples of all ranks in a step")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    if options.batch % size:
        raise SystemExit(f"--batch {options.batch} is not a multiple of the {size} ranks")
    clicks = Clicks(options.count, options.rows)
    model, optimizer = model_of(options.way, options.count, options.rows)
    torch.sparse.check_sparse_tensor_invariants.disable()  # nobody checks; torch would warn of it
    before = bytes_up()
    seconds = []
    for step in range(options.steps):
        dense, categories, clicked = parts_of(*clicks.batch(step, options.batch))
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, categories), clicked)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        if step % 50 == 0 or step == options.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step:4d}  loss {mean.item():.5f}", flush=True)
    sent = (bytes_up() - before) / options.steps
    found = auc(model, clicks)
    whole = options.count * options.rows * WIDTH * 4
    if rank == 0:
        print(
            f"{options.way}: AUC {found:.4f}, {1000 * statistics.median(seconds):.1f} ms a step, "
            f"{sent:,.0f} bytes up: {sent / whole:.2%} of the tables"
        )
    dist.destroy_process_group()


def bytes_up() -> int:
    """Return the bytes so far of this rank's frames to the switch, and of its tensors to Gloo."""
    group: Any = dist.group.WORLD
    frames: int = group.channel.comm.stats.bytes_sent if dist.get_world_size() > 1 else 0
    return frames + sum(one.bytes for one in p4reduce.torch.statistics().gloo.values())


if __name__ == "__main__":
    main()
