# SPDX-License-Identifier: Apache-2.0
"""Compressed all-reduce of two processes through the embedded switch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from p4reduce.compression import compressor_by_name
from rank_over_switch import NAMES, SIZE, STEPS, gradient

RANKS = 2
BLOCKS = -(-SIZE // 256)


def expected(name: str) -> tuple[list[np.ndarray], list[int]]:
    """Sums, and blocks that each rank sends, of the same steps in this process."""
    compressors = [compressor_by_name(name, RANKS) for _ in range(RANKS)]
    sums, blocks = [], [0] * RANKS
    for step in range(STEPS):
        pairs = list(zip(compressors, (gradient(r, step) for r in range(RANKS)), strict=True))
        wanted = [compressor.propose("x", given) for compressor, given in pairs]
        agreed = None if wanted[0] is None else np.sum(np.array(wanted), axis=0)
        sent = [compressor.compress("x", given, agreed) for compressor, given in pairs]
        total = np.sum([one.values for one in sent], axis=0)
        sums.append(total)
        for rank, one in enumerate(sent):
            compressors[rank].decompress("x", total)
            # Counted in the 32-bit lanes that carry them, whatever they are rounded to.
            padded = np.pad(one.values, (0, -SIZE % 256)).reshape(-1, 256)
            blocks[rank] += int(padded.any(axis=1).sum())
            if agreed is not None:
                blocks[rank] += -(-len(agreed) // 256)
    return sums, blocks


def test_sums_and_blocks_on_the_wire_are_those_chosen(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("rank_over_switch.py")
    launcher = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", str(RANKS)]
    done = subprocess.run(
        [*launcher, "--switch", "embedded", "--", sys.executable, str(worker), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(RANKS)]
    assert ranks[0]["results"].tobytes() == ranks[1]["results"].tobytes()
    for index, name in enumerate(NAMES):
        sums, blocks = expected(name)
        for step, total in enumerate(sums):
            got = ranks[0]["results"][index * STEPS + step]
            assert np.abs(got - total).max() <= 1e-6 * np.abs(total).max(), (name, step)
        assert [int(rank["blocks"][index]) for rank in ranks] == blocks, name
    by_name = dict(zip(NAMES, ranks[0]["blocks"], strict=True))
    assert by_name["none"] == STEPS * BLOCKS
    assert by_name["cat"] < by_name["none"] / 2
