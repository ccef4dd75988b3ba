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

from p4reduce_lab.measured.machine import described, provenance

from bench.pages import table
from bench.program import read_options, run
from bench.pytorch.over_links import join, run_over_links
from bench.record import Record, Section

PAGE = "docs/experiments.md"
PARTS = ("computing", "compressing", "waiting", "summing", "rest")
HEAD = (
    "links",
    "model",
    "gradients by",
    "a step",
    *PARTS,
    "processor per step, all ranks",
    "all-reduces per average",
)
METHODS = (
    "computing alone",
    "Gloo, local SGD, H = 8",
    "Gloo, local SGD, H = 16",
    "Gloo, PowerSGD 8, fp16, H = 8",
    "Gloo, PowerSGD 8, fp16, H = 16",
    "p4reduce int8, H = 8",
    "p4reduce int8, H = 16",
    "p4reduce PowerSGD 8, int8, H = 8",
    "p4reduce PowerSGD 8, int8, H = 16",
)

Span = tuple[str, float, float]


class Notes:
    """What a rank noted: spans of time, by what was done."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def noting(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, noting its calls."""

        @wraps(function)
        def noted(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.spans.append((what, began, time.perf_counter()))

        return noted


def shares(ranks: Sequence[Sequence[Span]], steps: int) -> dict[str, float]:
    """Return the seconds per step of each part, means over the ranks."""
    sums = [[one for one in spans if one[0] == "sum"] for spans in ranks]
    count = len(sums[0])
    assert all(len(some) == count for some in sums), "the ranks make the same calls"
    last = [max(some[number][1] for some in sums) for number in range(count)]
    total = dict.fromkeys(PARTS, 0.0)
    for spans, mine in zip(ranks, sums, strict=True):
        for what, began, ended in spans:
            if what in ("computing", "compressing"):
                total[what] += ended - began
        for (_, began, ended), all_there in zip(mine, last, strict=True):
            total["waiting"] += max(0.0, min(all_there, ended) - began)
            total["summing"] += ended - max(began, min(all_there, ended))
        averaging = sum(ended - began for what, began, ended in spans if what == "average")
        total["rest"] += averaging - sum(
            ended - began for what, began, ended in spans if what in ("compressing", "sum")
        )
    return {name: seconds / len(ranks) / steps for name, seconds in total.items()}


def profile(
    backend: str, store: str, models: list[str], methods: list[str], steps: int
) -> list[dict[str, Any]]:
    """One rank: trains with one method after the other."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from bench.pytorch import accuracy_rank

    join(backend, store)
    ranks = dist.get_world_size()
    reports = []
    for model_name in models:
        for name in methods:
            method = accuracy_rank.METHODS[name]
            if model_name not in method.models:
                continue
            task = accuracy_rank.TASKS[model_name](0)
            torch.manual_seed(0)
            model, optimiser = accuracy_rank.prepared(method, task, 0)
            notes = Notes()
            _watch(notes, optimiser, method.backend)
            draw = torch.Generator().manual_seed(dist.get_rank())
            inner = getattr(optimiser, "optimizer", optimiser)
            dist.barrier()
            notes.spans.clear()
            processor, began_all = time.process_time(), time.perf_counter()
            for step in range(1, steps + 1):
                inputs, labels = task.batch(draw)
                began = time.perf_counter()
                inner.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                notes.spans.append(("computing", began, time.perf_counter()))
                began = time.perf_counter()
                optimiser.step()
                what = "average" if method.every and step % method.every == 0 else "computing"
                notes.spans.append((what, began, time.perf_counter()))
            wall, processor = time.perf_counter() - began_all, time.process_time() - processor
            mine = (notes.spans[:], wall, processor)
            gathered: list[Any] = [None] * ranks
            dist.all_gather_object(gathered, mine)
            _unwatch()
            every = max(1, method.every)
            reports.append(
                {
                    "model": model_name,
                    "method": name,
                    "step": sum(one[1] for one in gathered) / ranks / steps,
                    "processor": sum(one[2] for one in gathered) / steps,
                    "sums": sum(one[0] == "sum" for one in mine[0]) / (steps / every),
                    **shares([one[0] for one in gathered], steps),
                }
            )
    dist.destroy_process_group()
    return reports


_plain: dict[tuple[Any, str], Any] = {}


def _replace(place: Any, name: str, function: Any) -> None:
    _plain[place, name] = getattr(place, name)
    setattr(place, name, function)


def _watch(notes: Notes, optimiser: Any, backend: str) -> None:
    from p4reduce.communicator import Communicator

    from bench.pytorch.averaging import GlooSums

    sums = GlooSums if backend == "gloo" else Communicator
    _replace(sums, "allreduce", notes.noting("sum", sums.allreduce))
    compressor = getattr(optimiser, "_compressor", None)  # private: its calls are timed
    if compressor is not None:
        for name in ("propose", "compress", "decompress"):
            setattr(compressor, name, notes.noting("compressing", getattr(compressor, name)))


def _unwatch() -> None:
    for (place, name), function in _plain.items():
        setattr(place, name, function)
    _plain.clear()


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
            print(table(HEAD, lines(rows)), flush=True)
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
    print(table(HEAD, lines(rows)))
    if options.docs:
        text = f"{described(begun)}\n\n"
        section = Section(PAGE, "stacked-profile", text, HEAD, lines(rows))
        command = "python -m bench.pytorch.stacked_profile --docs"
        Record("stacked_profile", command, begun, (section,)).keep()


if __name__ == "__main__":
    run(main)
