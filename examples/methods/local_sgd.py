# SPDX-License-Identifier: Apache-2.0
"""Local SGD and DiLoCo on digits: models are averaged every H steps.

p4reduce-lab exec -n 8 -- python examples/methods/local_sgd.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.methods.local_sgd import DILOCO_MOMENTUM, DILOCO_RATE, local_sgd
from p4reduce.methods.network import NetworkPart
from sklearn.datasets import load_digits

TEST, STEPS, BATCH, HIDDEN, RATE = 360, 640, 32, 32, 0.3
EVERY = (1, 4, 16, 64)
OUTER: dict[str, dict[str, Any]] = {
    "local SGD": {},
    "DiLoCo": {"outer_rate": DILOCO_RATE, "outer_momentum": DILOCO_MOMENTUM},
}


def part_of(images: Any, labels: Any, by_label: bool, rank: int, size: int) -> NetworkPart:
    """The samples of a rank: every one in so many, or a range of the labels."""
    rows = np.arange(TEST, len(images))
    if by_label:
        share = np.array_split(rows[labels[rows].argsort(kind="stable")], size)[rank]
    else:
        share = rows[rank::size]
    return NetworkPart(images[share], labels[share], HIDDEN, 10)


def main() -> None:
    """Compares H and shards by how many test images are right, the mean of some seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="a PNG to write")
    given = parser.parse_args()
    digits = load_digits()
    scores: dict[tuple[str, bool], list[float]] = {}
    with p4reduce.init() as comm:
        for shards in (False, True):
            for outer, settings in OUTER.items():
                for every in EVERY:
                    right, sent = [], 0
                    for seed in range(given.seeds):
                        order = np.random.default_rng(seed).permutation(len(digits.data))
                        images, labels = digits.data[order] / 16, digits.target[order]
                        part = part_of(images, labels, shards, comm.rank, comm.size)
                        before = comm.stats.bytes_sent
                        end = local_sgd(
                            comm,
                            part,
                            rate=RATE,
                            steps=STEPS,
                            every=every,
                            batch=BATCH,
                            seed=seed,
                            start=part.start(seed),
                            **settings,
                        )
                        sent += comm.stats.bytes_sent - before
                        right.append(part.score(end.model, images[:TEST], labels[:TEST]))
                    scores.setdefault((outer, shards), []).append(100 * float(np.mean(right)))
                    if comm.rank == 0:
                        print(
                            f"{outer:9}, shards {'sorted by label' if shards else 'alike':15}, "
                            f"H={every:2}: {scores[outer, shards][-1]:.1f} % right, "
                            f"{sent / given.seeds / 1e3:7.0f} kB sent per rank",
                            flush=True,
                        )
        if given.picture and comm.rank == 0:
            draw(scores, comm.size, given.picture)


def draw(scores: dict[tuple[str, bool], list[float]], ranks: int, path: Path) -> None:
    """Draw what is right against H."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 3.8))
    for (outer, by_label), right in scores.items():
        label = f"{outer}, {'sorted by label' if by_label else 'alike'}"
        axes.plot(
            EVERY,
            right,
            "o-" if outer == "local SGD" else "s--",
            color="tab:orange" if by_label else "tab:blue",
            label=label,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(EVERY, [str(every) for every in EVERY])
    axes.set(xlabel="H, steps between two averages", ylabel="test images right, %")
    axes.set_title(f"Local SGD on digits, {ranks} ranks, {STEPS} steps")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
