# SPDX-License-Identifier: Apache-2.0
"""Tensors of which each rank has only some blocks, the same in every process."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 1024
LANES = BLOCK_BYTES // 4  # float32

Masks = npt.NDArray[np.bool_]
"""Who has anything in which block; shape (ranks, blocks)."""


def draw(overlap: str, world: int, blocks: int, density: float, seed: list[int]) -> Masks:
    """Choose blocks at random, of each of `world` ranks as many as the density says.

    `overlap`: of `p4reduce_lab.planning.framing.OVERLAPS`. Equal seeds give equal choices.
    """
    rng = np.random.default_rng(seed)
    masks = np.zeros((world, blocks), np.bool_)
    number = round(density * blocks)
    chosen = rng.choice(blocks, number, replace=False)
    for mask in masks:
        if overlap == "independent":
            chosen = rng.choice(blocks, number, replace=False)
        mask[chosen] = True
    return masks


def tensor(masks: Masks, rank: int) -> npt.NDArray[np.float32]:
    """What a rank contributes: rank + 1 in all elements of its blocks."""
    return np.repeat(masks[rank].astype(np.float32) * np.float32(rank + 1), LANES)


def is_sum(result: npt.NDArray[Any], masks: Masks) -> bool:
    """Whether this is the sum of all ranks' tensors. They are exact in 32-bit lanes."""
    ranks = np.arange(1, len(masks) + 1, dtype=np.float32)
    return bool((result.reshape(-1, LANES) == (ranks @ masks)[:, None]).all())
