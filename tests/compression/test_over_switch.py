# SPDX-License-Identifier: Apache-2.0
"""Compressed all-reduce of two processes through the embedded switch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from p4reduce.compression import compressor_by_name
from rank_over_switch import NAMES, NAN_AT, NAN_STEP, NOT_FINITE, SIZE, STEPS, gradient

RANKS = 2
BLOCKS = -(-SIZE // 256)


def expected(name: str) -> tuple[list[np.ndarray], list[float], list[int], list[list[bool]]]:
    """Of the same steps in this process: the sums, how far the switch's may be from them, the
    blocks that each rank sends, and in which steps each sends everything."""
    compressors = [compressor_by_name(name, RANKS) for _ in range(RANKS)]
    sums, bounds, blocks = [], [], [0] * RANKS
    dense: list[list[bool]] = [[] for _ in range(RANKS)]
    precision = f"int{compressors[0].lane_bits}"
    for step in range(STEPS):
        pairs = list(zip(compressors, (gradient(r, step) for r in range(RANKS)), strict=True))
        wanted = [compressor.propose("x", given) for compressor, given in pairs]
        agreed = None if wanted[0] is None else np.sum(np.array(wanted), axis=0)
        sent = [compressor.compress("x", given, agreed) for compressor, given in pairs]
        total = np.sum([one.values for one in sent], axis=0)
        sums.append(total)
        largest = max(np.abs(one.values).max() for one in sent)
        rounding = 2**-23 * np.abs(total).max()
        bounds.append(float(p4reduce.error_bound(largest, RANKS, precision) + rounding))
        for rank, one in enumerate(sent):
            compressors[rank].decompress("x", total)
            blocks[rank] += one.blocks
            dense[rank].append(one.dense)
            if agreed is not None:
                blocks[rank] += -(-len(agreed) // 256)
    return sums, bounds, blocks, dense


@pytest.mark.long
def test_sums_and_blocks_on_the_wire_are_those_chosen(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("rank_over_switch.py")
    launcher = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", str(RANKS)]
    done = subprocess.run(
        [*launcher, "--switch", "embedded", "--", sys.executable, str(worker), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(RANKS)]
    assert ranks[0]["results"].tobytes() == ranks[1]["results"].tobytes()
    for index, name in enumerate(NAMES):
        sums, bounds, blocks, dense = expected(name)
        for step, (total, bound) in enumerate(zip(sums, bounds, strict=True)):
            got = ranks[0]["results"][index * STEPS + step]
            assert np.abs(got - total).max() <= bound, (name, step)
        assert [int(rank["blocks"][index]) for rank in ranks] == blocks, name
        steps = slice(index * STEPS, (index + 1) * STEPS)
        assert [list(rank["dense"][steps]) for rank in ranks] == dense, name
    by_name = dict(zip(NAMES, ranks[0]["blocks"], strict=True))
    assert by_name["none"] == STEPS * BLOCKS
    assert by_name["cat"] < by_name["none"] / 2
    # Four fifths of the blocks on each rank: with all of them on both there are fewer frames.
    for name in ("topk:0.8", "threshold:0.3"):
        at = NAMES.index(name)
        assert ranks[0]["dense"][at * STEPS : (at + 1) * STEPS].all(), name
        assert by_name[name] == by_name["none"]
    # All blocks, and one frame without lanes that opens each of the stripes; frames of 78 bytes
    # and 1,024 of lanes. What a timer sent again is counted too, and as dear as can be here.
    dense_names = (("none", 256), ("topk:0.8", 256), ("int16", 512), ("int8", 1024))
    for name, elements in dense_names:
        moved, again = ranks[0]["moved"][NAMES.index(name)]
        count = -(-SIZE // elements)
        least = STEPS * count * (78 + 1024)
        assert least < moved <= least + STEPS * count * 78 + again * (78 + 1024), name
    # NaN on one rank: its block of that step, on both ranks, and nothing in the next one.
    block = np.arange(SIZE) // 256 == NAN_AT // 256
    assert ranks[0]["spoilt"].tobytes() == ranks[1]["spoilt"].tobytes()
    for index, name in enumerate(NOT_FINITE):
        for step in range(STEPS):
            got = np.isnan(ranks[0]["spoilt"][index * STEPS + step])
            assert (got == (block & (step == NAN_STEP))).all(), (name, step)
    # Of 32,000 and 64,000, whose sum is more than float16 can hold.
    assert (ranks[0]["half_mean"] == np.float16(48_000)).all()
