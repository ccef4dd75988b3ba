# SPDX-License-Identifier: Apache-2.0
"""Pairs the digests of a program with those of its P4Info.

A digest of a struct has the struct's name in both. A digest of a list (`digest(1, { a, b })`) has
no name: p4c numbers it in the P4Info ("digest_0"). In the JSON it has the name of the type that p4c
makes of the list ("tuple_0"). Both are in the order of the calls in the program. So the remaining
names are paired in that order, by the widths of the fields. p4c may have left out calls from the
JSON that no packet reaches. BMv2's server takes such a P4Info as well, but never finds these
digests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_Widths = Sequence[int]


def pair_digests(p4info: Mapping[str, _Widths], program: Mapping[str, _Widths]) -> dict[str, str]:
    """Return the program's name of each digest that has another name in the P4Info.

    Args:
        p4info: the P4Info's digests by name, in its order, each with the widths of its fields.
        program: the program's.

    Returns:
        Digests with equal names are left out. Empty if the pairing is ambiguous, or a digest of the
        program fits none of the P4Info's.
    """
    unnamed = [name for name in p4info if name not in program]
    lists = [name for name in program if name not in p4info]
    first = _places([p4info[n] for n in unnamed], [program[n] for n in lists])
    # Where the earliest and the latest way to place them differ there are several.
    last = _places([p4info[n] for n in unnamed[::-1]], [program[n] for n in lists[::-1]])
    if first is None or last is None or first != [len(unnamed) - 1 - at for at in last[::-1]]:
        return {}
    return {unnamed[at]: name for at, name in zip(first, lists, strict=True)}


def _places(p4info: Sequence[_Widths], program: Sequence[_Widths]) -> list[int] | None:
    """For each of `program`, in order, the first of `p4info` that can be it."""
    places: list[int] = []
    at = 0
    for widths in program:
        while at < len(p4info) and list(p4info[at]) != list(widths):
            at += 1
        if at == len(p4info):
            return None
        places.append(at)
        at += 1
    return places
