# SPDX-License-Identifier: Apache-2.0
"""Parser value sets: what a `select` looks up in, filled by the control plane."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ValueSet", "ValueSetFull"]


class ValueSetFull(Exception):  # noqa: N818
    """There are more members than the program has room for."""


class ValueSet:
    """A set of keys; empty at the start.

    The generated code tests `key in members`, where a key is an integer, or a tuple of them if the
    `select` has several fields. Change it only between two packets.

    Args:
        name: its name in the P4 program.
        widths: of the key's fields, in bits.
        size: how many members it may have.
    """

    __slots__ = ("members", "name", "size", "widths")

    def __init__(self, name: str, widths: tuple[int, ...], size: int) -> None:
        self.name = name
        self.widths = widths
        self.size = size
        self.members: set[int | tuple[int, ...]] = set()

    def replace(self, members: Iterable[tuple[int, ...]]) -> None:
        """Have these members from now on; raises ValueSetFull, or ValueError for a bad key."""
        keys = set(members)
        if len(keys) > self.size:
            raise ValueSetFull(f"value set {self.name} has room for {self.size}, not {len(keys)}")
        for key in keys:
            if len(key) != len(self.widths):
                raise ValueError(f"a key of {self.name} has {len(self.widths)} fields, not {key}")
            for value, width in zip(key, self.widths, strict=True):
                if not 0 <= value < 1 << width:
                    raise ValueError(f"{value:#x} in a key of {self.name} exceeds {width} bits")
        self.members.clear()
        self.members.update(key[0] if len(key) == 1 else key for key in keys)

    def keys(self) -> list[tuple[int, ...]]:
        """The members, sorted."""
        return sorted(key if isinstance(key, tuple) else (key,) for key in self.members)
