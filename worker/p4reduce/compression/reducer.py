# SPDX-License-Identifier: Apache-2.0
"""Compressed all-reduce over a communicator, and compressors by name."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from p4reduce.compression.base import Array, Compressed, Compressor, DenseSwitchOver
from p4reduce.compression.cat import Agreement, Cat
from p4reduce.compression.costs import CostModel, SwitchLink
from p4reduce.compression.levels import Scheme
from p4reduce.compression.sparsifiers import (
    ApproximateTopK,
    RandomK,
    Threshold,
    TopK,
    Uncompressed,
)


class SumsTensors(Protocol):
    """What is needed of a communicator (`p4reduce.init()` returns one)."""

    @property
    def size(self) -> int:
        """World size."""
        ...

    def allreduce(self, array: Array, *, name: str) -> Array:
        """The sum over all ranks."""
        ...


class CompressedAllreduce:
    """Sums tensors over all ranks, each sending what its compressor chooses.

    Every rank makes the same calls in the same order, with compressors of the same settings.

    Attributes:
        latest: what this rank sent of each tensor, most recently.

    Example:
        reduce = CompressedAllreduce(communicator, Cat(world_size=4, cost=link))
        mean = reduce.mean(gradient, "layer1.weight")
    """

    def __init__(self, communicator: SumsTensors, compressor: Compressor) -> None:
        """Raises ValueError if the compressor is made for another world size."""
        if compressor.world_size != communicator.size:
            raise ValueError(
                f"the compressor is made for {compressor.world_size} ranks, but the communicator "
                f"has {communicator.size}"
            )
        self.communicator = communicator
        self.compressor = compressor
        self.latest: dict[str, Compressed] = {}

    def sum(self, gradient: Array, name: str) -> Array:
        """The sum over the ranks of what each chose to send; shape and dtype of the gradient."""
        wanted = self.compressor.propose(name, gradient)
        agreed = None
        if wanted is not None:
            agreed = np.asarray(self.communicator.allreduce(wanted, name=f"{name}/level"))
        sent = self.compressor.compress(name, gradient, agreed)
        self.latest[name] = sent
        total = np.asarray(self.communicator.allreduce(sent.values, name=name))
        return self.compressor.decompress(name, total)

    def mean(self, gradient: Array, name: str) -> Array:
        """The sum divided by the world size."""
        total = self.sum(gradient, name)
        return np.asarray(total / total.dtype.type(self.communicator.size))


COMPRESSIONS = (
    "none, int16, int8, topk:SHARE, mstopk:SHARE, randomk:SHARE, threshold:RMS, cat, cat:signs, "
    "cat:stochastic, cat:level, cat:blocks, each of them with /int16 or /int8 appended for narrow "
    "lanes"
)


def compressor_by_name(
    text: str, world_size: int, cost: CostModel | None = None, *, seed: int = 0
) -> Compressor:
    """A compressor for one rank from a short text, such as a command line's.

    Args:
        text: one of `COMPRESSIONS`, for example "cat", "topk:0.05" or "topk:0.05/int8".
        world_size: ranks whose contributions are summed.
        cost: what CAT weighs its levels against; default: a SwitchLink of 100 Mbit/s, 1 ms.
        seed: of random choices; the same on all ranks.

    Raises:
        ValueError: the text is none of them.
    """
    try:
        return _by_name(text, world_size, cost, seed)
    except ValueError as error:
        raise ValueError(f"compression {text!r}: {error}. Known: {COMPRESSIONS}") from error


def _by_name(text: str, world_size: int, cost: CostModel | None, seed: int) -> Compressor:
    method, _, lanes = text.partition("/")
    kind, _, argument = method.partition(":")
    lane_bits = {"": 32, "int16": 16, "int8": 8}.get(lanes)
    if lane_bits is None:
        raise ValueError(f"lanes are int16 or int8, not {lanes!r}")
    common: dict[str, Any] = {"world_size": world_size, "lane_bits": lane_bits, "seed": seed}
    link = SwitchLink(world_size, 1e8, 1e-3, lane_bytes=lane_bits // 8)
    if kind == "cat":
        return _cat_by_name(argument, cost or link, link, common)
    if method == "none":
        return Uncompressed(**common)
    if method in ("int16", "int8") and not lanes:
        return Uncompressed(**{**common, "lane_bits": int(method[3:])})
    if kind == "threshold":
        return Threshold(**common, threshold=_number(kind, argument))
    for name, share in (("topk", TopK), ("mstopk", ApproximateTopK), ("randomk", RandomK)):
        if kind == name:
            density = _number(kind, argument)
            return share(**common, density=density, switch_over=DenseSwitchOver(link))
    raise ValueError("there is none of that name")


def _number(kind: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise ValueError(f"{kind}: needs a number, not {argument!r}") from None


def _cat_by_name(argument: str, cost: CostModel, link: SwitchLink, common: dict[str, Any]) -> Cat:
    schemes = {"": Scheme.SPARSE, "signs": Scheme.SIGNS, "stochastic": Scheme.STOCHASTIC}
    agreements = {"level": Agreement.LEVEL, "blocks": Agreement.BLOCKS}
    if argument not in schemes and argument not in agreements:
        raise ValueError(f"there is no {argument!r} kind of cat")
    return Cat(
        **common,
        cost=cost,
        scheme=schemes.get(argument, Scheme.SPARSE),
        agreement=agreements.get(argument, Agreement.OWN),
        switch_over=DenseSwitchOver(link) if argument not in ("signs", "stochastic") else None,
    )
