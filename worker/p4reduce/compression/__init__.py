# SPDX-License-Identifier: Apache-2.0
"""Compression: chooses what to send for the most progress per bit on a link.

Compressors choose what of a gradient is all-reduced, and `CompressedAllreduce` sums it over a
communicator. "cat" is `MemoryCat` (memory.py), which chooses how much to send from the price of the
link. "cat:paper" is the paper's own rule (cat.py, levels.py; arXiv 2003.06377). `HierarchicalTopK`
sums over a tree of switches and chooses once per leaf. docs/experiments.md has measured savings.
Imports `collectives`, `tensors` and `wire`. Of the other folders, `methods` and the hooks of
`torch` import it.
"""

from __future__ import annotations

from p4reduce.compression.base import (
    Compressed,
    Compressor,
    DenseSwitchOver,
    Selected,
    TensorState,
    nonzero_blocks,
)
from p4reduce.compression.cat import Agreement, Cat
from p4reduce.compression.costs import (
    Affine,
    CostModel,
    Encoding,
    Packets,
    Payload,
    SwitchLink,
    Traffic,
)
from p4reduce.compression.hierarchical import HierarchicalTopK
from p4reduce.compression.levels import Choice, Levels, Scheme, choose, measure
from p4reduce.compression.linear import LinearOperator
from p4reduce.compression.memory import MemoryCat
from p4reduce.compression.operators.gradiveq import GradiVeQ
from p4reduce.compression.operators.mstopk import ApproximateTopK, approximate_top_k
from p4reduce.compression.operators.powersgd import PowerSGD
from p4reduce.compression.operators.randomk import RandomK
from p4reduce.compression.operators.threshold import Threshold
from p4reduce.compression.operators.topk import TopK
from p4reduce.compression.operators.uncompressed import Uncompressed
from p4reduce.compression.probe import measure_link
from p4reduce.compression.reducer import (
    CompressedAllreduce,
    SumsTensors,
    in_lanes,
    proposal_lanes,
)
from p4reduce.compression.registry import (
    Settings,
    compressor_by_name,
    known_compressions,
    register,
)
from p4reduce.compression.shares import Fraction

__all__ = [
    "Affine",
    "Agreement",
    "ApproximateTopK",
    "Cat",
    "Choice",
    "Compressed",
    "CompressedAllreduce",
    "Compressor",
    "CostModel",
    "DenseSwitchOver",
    "Encoding",
    "Fraction",
    "GradiVeQ",
    "HierarchicalTopK",
    "Levels",
    "LinearOperator",
    "MemoryCat",
    "Packets",
    "Payload",
    "PowerSGD",
    "RandomK",
    "Scheme",
    "Selected",
    "Settings",
    "SumsTensors",
    "SwitchLink",
    "TensorState",
    "Threshold",
    "TopK",
    "Traffic",
    "Uncompressed",
    "approximate_top_k",
    "choose",
    "compressor_by_name",
    "in_lanes",
    "known_compressions",
    "measure",
    "measure_link",
    "nonzero_blocks",
    "proposal_lanes",
    "register",
]
