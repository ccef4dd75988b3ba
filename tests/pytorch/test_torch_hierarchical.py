# SPDX-License-Identifier: Apache-2.0
"""`hierarchical_hook` on a tree of two leaves, beside the same in numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

SIZE, DENSITY, RANKS = 1000, 0.1, 4


@pytest.mark.timeout(300)
def test_the_means_are_those_of_numpy() -> None:
    program = Path(__file__).with_name("programs") / "hierarchical.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "p4reduce_lab",
            "exec",
            "--switch",
            "embedded",
            "--tree",
            "2x2",
            "--",
            sys.executable,
            str(program),
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert sorted(one["leaf"] for one in records) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    given = np.arange(RANKS * SIZE).reshape(RANKS, SIZE) * 7919 % (RANKS * SIZE) - 2000.0
    kept = np.zeros((2, SIZE))
    for step in range(2):
        wanted = kept + np.array([given[:2].mean(axis=0), given[2:].mean(axis=0)])
        sent = np.zeros((2, SIZE))
        for leaf in range(2):
            for shard in np.split(np.arange(SIZE), 2):
                order = np.argsort(-np.abs(wanted[leaf, shard]))
                largest = shard[order[: round(DENSITY * len(shard))]]
                sent[leaf, largest] = wanted[leaf, largest]
        kept = wanted - sent
        for one in records:  # halves of whole numbers: no sum is rounded
            assert np.array_equal(one["gradients"][step], sent.mean(axis=0)), (one["rank"], step)
