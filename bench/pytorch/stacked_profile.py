# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes in `bench.pytorch.stacked`: computing, compressing, waiting, summing.

Each rank notes when its parts begin and end; the ranks share a clock. Of an all-reduce, *waiting*
is the time until the last rank has begun it, *summing* the time from there to its end on this rank.

    python -m bench.pytorch.stacked_profile [--rates 10 25 100] [--models cnn] [--steps 80]
        [--methods NAME ...] [--docs]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any
from unittest import mock

from p4reduce_common.rows import markdown_table
from p4reduce_lab.measured.machine import described, provenance

from bench.program import read_options, run
from bench.pytorch.over_links import join, run_over_links
from bench.record import Record, Section

PAGE = "docs/experiments.md"
PARTS = ("computing", "compressing", "waiting", "summing", "rest")
HEAD = ("links", "model", "gradients by", "a step", *PARTS, "processor per step, all ranks",
        "all-reduces per average")  # fmt: skip
METHODS = (
    "computing alone",
    *(
        f"{name}, H = {every}"
        for name in ("Gloo, local SGD", "Gloo, PowerSGD 8, fp16", "p4reduce int8",
                     "p4reduce PowerSGD 8, int8")
        for every in (8, 16)
    ),
)  # fmt: skip

Span = tuple[str, float, float]


def noting(spans: list[Span], what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, noting its calls."""

    @wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spans.append((what, began, time.perf_counter()))

    return noted


def shares(ranks: Sequence[Sequence[Span]], steps: int) -> dict[str, float]:
    """Return the seconds per step of each part, means over the ranks."""
    sums = [[one for one in spans if one[0] == "sum"] for spans in ranks]
    last = [max(began for _, began, _ in calls) for calls in zip(*sums, strict=True)]
    total = dict.fromkeys(PARTS, 0.0)
    for spans, mine in zip(ranks, sums, strict=True):
        took = dict.fromkeys(("computing", "compressing", "sum", "average"), 0.0)
        for what, began, ended in spans:
            took[what] += ended - began
        for (_, began, ended), all_there in zip(mine, last, strict=True):
            total["waiting"] += max(0.0, min(all_there, ended) - began)
            total["summing"] += ended - max(began, min(all_there, ended))
        total["computing"] += took["computing"]
        total["compressing"] += took["compressing"]
        total["rest"] += took["average"] - took["compressing"] - took["sum"]
    return {name: seconds / len(ranks) / steps for name, seconds in total.items()}


def profile(
    backend: str, store: str, models: list[str], methods: list[str], steps: int
) -> list[dict[str, Any]]:
    """One rank: trains with one method after the other."""
    import torch.distributed as dist

    from bench.pytorch.accuracy_rank import METHODS as KNOWN

    join(backend, store)
    reports = [
        profile_one(model, name, steps)
        for model in models
        for name in methods
        if model in KNOWN[name].models
    ]
    dist.destroy_process_group()
    return reports


def profile_one(model_name: str, name: str, steps: int) -> dict[str, Any]:
    """Train with one method."""
    import torch
    import torch.distributed as dist
    from p4reduce.communicator import Communicator
    from torch import nn

    from bench.pytorch import accuracy_rank
    from bench.pytorch.averaging import GlooSums

    ranks, method = dist.get_world_size(), accuracy_rank.METHODS[name]
    task = accuracy_rank.TASKS[model_name](0)
    torch.manual_seed(0)
    model, optimiser = accuracy_rank.prepared(method, task, 0)
    spans: list[Span] = []
    compressor = getattr(optimiser, "_compressor", None)  # private: its calls are timed
    for call in ("propose", "compress", "decompress") if compressor is not None else ():
        setattr(compressor, call, noting(spans, "compressing", getattr(compressor, call)))
    sums: type[Any] = GlooSums if method.backend == "gloo" else Communicator
    draw = torch.Generator().manual_seed(dist.get_rank())
    inner = getattr(optimiser, "optimizer", optimiser)

    def compute() -> None:
        inputs, labels = batch
        inner.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()

    computing = noting(spans, "computing", compute)
    with mock.patch.object(sums, "allreduce", noting(spans, "sum", sums.allreduce)):
        dist.barrier()
        spans.clear()
        processor, began = time.process_time(), time.perf_counter()
        for step in range(1, steps + 1):
            batch = task.batch(draw)
            computing()
            what = "average" if method.every and step % method.every == 0 else "computing"
            noting(spans, what, optimiser.step)()
        mine = (spans[:], time.perf_counter() - began, time.process_time() - processor)
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(gathered, mine)
    return {
        "model": model_name,
        "method": name,
        "step": sum(one[1] for one in gathered) / ranks / steps,
        "processor": sum(one[2] for one in gathered) / steps,
        "sums": sum(one[0] == "sum" for one in mine[0]) / (steps / max(1, method.every)),
        **shares([one[0] for one in gathered], steps),
    }


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return rows for `HEAD`."""
    return [
        [
            f"{row['rate_mbit']:g} Mbit/s",
            row["model"],
            row["method"],
            f"{row['step'] * 1e3:.1f} ms",
            *(f"{row[part] * 1e3:.1f}" for part in PARTS),
            f"{row['processor'] * 1e3:.1f} ms",
            f"{row['sums']:g}",
        ]
        for row in rows
    ]


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Profile all methods at all rates."""
    from bench.pytorch.accuracy_rank import METHODS as KNOWN  # needs torch

    given = {"models": options.models, "steps": options.steps}
    for rate, backend in itertools.product(options.rates, ("gloo", "p4reduce")):
        if methods := [one for one in options.methods if KNOWN[one].backend == backend]:
            found = run_over_links(backend, profile, options.ranks, rate, methods=methods, **given)
            rows = [{"rate_mbit": rate, **one} for one in found]
            print(markdown_table(HEAD, lines(rows)), flush=True)
            yield from rows


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs=PAGE,
        rates=[10.0, 25.0, 100.0],
        ranks=8,
        steps=80,
        models=["cnn"],
        methods=list(METHODS),
    )
    begun, rows = provenance("torch"), list(measure(options))
    print(markdown_table(HEAD, lines(rows)))
    if options.docs:
        text = f"{described(begun)}\n\n"
        section = Section(PAGE, "stacked-profile", text, HEAD, lines(rows))
        command = "python -m bench.pytorch.stacked_profile --docs"
        Record("stacked_profile", command, begun, (section,)).keep()


if __name__ == "__main__":
    run(main)
