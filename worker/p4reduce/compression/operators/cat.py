# SPDX-License-Identifier: Apache-2.0
"""CAT by its names: "cat" with memory, "cat:paper" by the paper's rule, and their variants."""

from __future__ import annotations

from typing import TypeVar

from p4reduce.compression.base import Compressor
from p4reduce.compression.cat import Agreement, Cat
from p4reduce.compression.levels import Scheme
from p4reduce.compression.memory import MemoryCat
from p4reduce.compression.registry import Settings, register

Kind = TypeVar("Kind")
PAPER = "paper"
FORMS = (
    "cat",
    "cat:level",
    "cat:own",
    "cat:paper",
    "cat:paper,level",
    "cat:paper,blocks",
    "cat:signs",
    "cat:stochastic",
)


@register("cat", *FORMS)
def _by_name(given: Settings) -> Compressor:
    words = given.argument.split(",") if given.argument else []
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
    over = None if agreement is Agreement.BLOCKS else given.switch_over
    kind = Cat if paper else MemoryCat
    return kind(
        **given.common, cost=given.cost, scheme=scheme, agreement=agreement, switch_over=over
    )


def _one_of(known: dict[str, Kind], words: list[str], default: Kind) -> Kind:
    found = [word for word in words if word in known]
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)} exclude each other")
    return known[found[0]] if found else default
