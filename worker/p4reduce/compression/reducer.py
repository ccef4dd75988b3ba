# SPDX-License-Identifier: Apache-2.0
"""Compressed all-reduce over a communicator, and compressors by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from p4reduce.collectives import MEAN, SUM
from p4reduce.compression.base import Array, Compressed, Compressor, DenseSwitchOver
from p4reduce.compression.cat import Agreement, Cat
from p4reduce.compression.costs import CostModel, SwitchLink
from p4reduce.compression.levels import Scheme
from p4reduce.compression.memory import MemoryCat
from p4reduce.compression.sparsifiers import (
    ApproximateTopK,
    RandomK,
    Threshold,
    TopK,
    Uncompressed,
)
from p4reduce.wire.calls import Operation

Kind = TypeVar("Kind")


class SumsTensors(Protocol):
    """What is needed of a communicator (`p4reduce.init()` returns one)."""

    @property
    def size(self) -> int:
        """World size."""
        ...

    def allreduce(
        self,
        array: Array,
        op: Operation = SUM,
        name: str | None = None,
        *,
        precision: str | None = None,
        seed: int | None = None,
    ) -> Array:
        """The sum over all ranks, or their mean, in lanes of `precision`."""
        ...


class CompressedAllreduce:
    """Sums tensors over all ranks, each sending what its compressor chooses.

    With a compressor of narrow lanes they travel in such lanes, which round at random on the scale
    that the ranks agree on; `Compressor.round_here` then only rounds a second time.

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
        return self._reduce(gradient, name, SUM)

    def mean(self, gradient: Array, name: str) -> Array:
        """The mean of the same; a sum that the dtype cannot hold does not matter."""
        return self._reduce(gradient, name, MEAN)

    def _reduce(self, gradient: Array, name: str, op: Operation) -> Array:
        wanted = self.compressor.propose(name, gradient)
        agreed = None
        if wanted is not None:
            agreed = np.asarray(self.communicator.allreduce(wanted, name=f"{name}/level"))
        sent = self.compressor.compress(name, gradient, agreed)
        self.latest[name] = sent
        narrow = sent.lane_bits < 32
        total = self.communicator.allreduce(
            sent.values,
            op,
            name,
            precision=f"int{sent.lane_bits}" if narrow else None,
            seed=self.compressor.seed if narrow else None,
        )
        return self.compressor.decompress(name, np.asarray(total))


COMPRESSIONS = (
    "none, int16, int8, topk:SHARE, mstopk:SHARE, randomk:SHARE, threshold:RMS, cat, cat:level, "
    "cat:own, cat:paper, cat:paper,level, cat:paper,blocks, cat:signs, cat:stochastic, each of "
    "them with /int16 or /int8 appended for narrow lanes"
)
PAPER = "paper"


def compressor_by_name(
    text: str, world_size: int, cost: CostModel | None = None, *, seed: int = 0
) -> Compressor:
    """A compressor for one rank from a short text, such as a command line's.

    It is made for `CompressedAllreduce`: narrow lanes are left to the all-reduce to round to.

    Args:
        text: one of `COMPRESSIONS`, for example "cat", "topk:0.05" or "topk:0.05/int8". "cat" is
            `MemoryCat` with `Agreement.BLOCKS`, "cat:paper" is `Cat` as in arXiv 2003.06377.
        world_size: ranks whose contributions are summed.
        cost: what CAT weighs its levels against, such as the link of `measure_link`; default: a
            SwitchLink of 100 Mbit/s, 1 ms. A SwitchLink is taken for the lanes of the name. All
            kinds whose ranks choose different blocks send everything where that takes no more
            frames (`DenseSwitchOver`), by the slots of that link, or 32 if it is of another kind.
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
    common: dict[str, Any] = {
        "world_size": world_size,
        "lane_bits": lane_bits,
        "round_here": False,
        "seed": seed,
    }
    cost = SwitchLink(world_size, 1e8, 1e-3) if cost is None else cost
    if isinstance(cost, SwitchLink):
        cost = link = replace(cost, lane_bytes=lane_bits // 8)
    else:
        # Whatever a rank pays for: frames are counted as they are, without rate or round trip.
        link = SwitchLink(world_size, 1e8, lane_bytes=lane_bits // 8)
    switch_over = DenseSwitchOver(link)
    if kind == "cat":
        return _cat_by_name(argument, cost, switch_over, common)
    if method == "none":
        return Uncompressed(**common)
    if method in ("int16", "int8") and not lanes:
        return Uncompressed(**{**common, "lane_bits": int(method[3:])})
    if kind == "threshold":
        return Threshold(**common, threshold=_number(kind, argument), switch_over=switch_over)
    for name, share in (("topk", TopK), ("mstopk", ApproximateTopK), ("randomk", RandomK)):
        if kind == name:
            density = _number(kind, argument)
            return share(**common, density=density, switch_over=switch_over)
    raise ValueError("there is none of that name")


def _number(kind: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise ValueError(f"{kind}: needs a number, not {argument!r}") from None


def _cat_by_name(
    argument: str, cost: CostModel, switch_over: DenseSwitchOver, common: dict[str, Any]
) -> Cat:
    words = argument.split(",") if argument else []
    schemes = {"signs": Scheme.SIGNS, "stochastic": Scheme.STOCHASTIC}
    agreements = {agreement.value: agreement for agreement in Agreement}
    for word in words:
        if word not in (*schemes, *agreements, PAPER):
            raise ValueError(f"there is no {word!r} kind of cat")
    scheme = _one_of(schemes, words, Scheme.SPARSE)
    # The paper has these schemes, and each rank choosing by itself.
    paper = PAPER in words or scheme is not Scheme.SPARSE
    agreement = _one_of(agreements, words, Agreement.OWN if paper else Agreement.BLOCKS)
    # Ranks that send the same blocks have no larger union to fear: leaving one out always pays.
    over = None if agreement is Agreement.BLOCKS else switch_over
    kind = Cat if paper else MemoryCat
    return kind(**common, cost=cost, scheme=scheme, agreement=agreement, switch_over=over)


def _one_of(known: dict[str, Kind], words: list[str], default: Kind) -> Kind:
    found = [word for word in words if word in known]
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)} exclude each other")
    return known[found[0]] if found else default
