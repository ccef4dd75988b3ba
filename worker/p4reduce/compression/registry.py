# SPDX-License-Identifier: Apache-2.0
"""Compressors by name: those of this package, and of other packages.

A module registers what it has:

    @register("stride", "stride:EVERY")
    def _by_name(given: Settings) -> Compressor:
        return Stride(**given.common, every=int(given.number()))

The package's own compressors are the modules of `operators`. Those of other packages are found by
entry points of the group "p4reduce.compressors"
(https://packaging.python.org/specifications/entry-points/). The name of the entry point is that of
the compressor, and its object is the module. It is imported when that name is asked for, or a name
that is not known.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from p4reduce.compression.base import Compressor, DenseSwitchOver
from p4reduce.compression.costs import CostModel, SwitchLink

GROUP = "p4reduce.compressors"
OWN = "p4reduce.compression.operators"  # a folder of modules that import this one
LANES = {"": 32, "int16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of a named compressor.

    Attributes:
        name: the word before the colon.
        argument: the text after it; "" without one.
        world_size: ranks whose contributions are summed.
        lane_bits: 32, 16 or 8.
        seed: of random choices; the same on all ranks.
        cost: the cost model of the link.
        switch_over: for compressors whose ranks choose by themselves: sends everything where that
            takes no more frames.
    """

    name: str
    argument: str
    world_size: int
    lane_bits: int
    seed: int
    cost: CostModel
    switch_over: DenseSwitchOver

    @property
    def common(self) -> dict[str, Any]:
        """The arguments of every `Compressor`; narrow lanes are left to the all-reduce."""
        return {
            "world_size": self.world_size,
            "lane_bits": self.lane_bits,
            "seed": self.seed,
        }

    def number(self) -> float:
        """The argument as a number. Raises ValueError if it is not a number."""
        try:
            return float(self.argument)
        except ValueError:
            raise ValueError(f"{self.name}: needs a number, not {self.argument!r}") from None

    def takes_no_argument(self) -> None:
        """Raise ValueError if there is an argument."""
        if self.argument:
            raise ValueError(f"{self.name} takes no argument, such as {self.argument!r}")


Make = Callable[[Settings], Compressor]


@dataclass(frozen=True, slots=True)
class _CompressorEntry:
    forms: tuple[str, ...]
    make: Make


_registered: dict[str, _CompressorEntry] = {}


def register(name: str, *forms: str) -> Callable[[Make], Make]:
    """Decorate the function that makes the compressor of a name.

    Args:
        name: what is before ":" and "/" in the text.
        forms: what the text may be, for error messages; default: the name alone.

    Raises:
        ValueError: the name is not a word, or another function has it.
    """
    if not name.isidentifier():
        raise ValueError(f"compressor {name!r}: a name has letters, digits and underscores only")

    def enter(make: Make) -> Make:
        there = _registered.get(name)
        if there is not None and _place(there.make) != _place(make):
            raise ValueError(
                f"compressor {name!r} of {make.__module__}: {there.make.__module__} has that name"
            )
        _registered[name] = _CompressorEntry(forms or (name,), make)
        return make

    return enter


def known_compressions() -> str:
    """The forms that `compressor_by_name` accepts. Imports packages that add some."""
    _load_own()
    broken = [failed for point in _others().values() if (failed := _load(point))]
    forms = ", ".join(form for name in sorted(_registered) for form in _registered[name].forms)
    known = f"{forms}, each of them with /int16, /int8 or /int4 appended for narrow lanes"
    return ". ".join([known, *broken])


def compressor_by_name(
    text: str, world_size: int, cost: CostModel | None = None, *, seed: int = 0
) -> Compressor:
    """Return a compressor for one rank from a short text, such as an option's value.

    It is meant for `CompressedAllreduce`: the all-reduce rounds to narrow lanes.

    Args:
        text: one of `known_compressions()`, for example "cat", "topk:0.05" or "topk:0.05/int8".
            "cat" is `MemoryCat` with `Agreement.BLOCKS`, "cat:paper" is `Cat` as in arXiv
            2003.06377.
        world_size: ranks whose contributions are summed.
        cost: what CAT weighs its levels against, such as the link of `measure_link`; default: a
            SwitchLink of 100 Mbit/s, 1 ms. A `SwitchLink` is adapted to the lanes of the name. All
            kinds whose ranks choose different blocks send everything where that takes no more
            frames (`DenseSwitchOver`), by the slots of that link, or 32 if it is of another kind.
        seed: of random choices; the same on all ranks.

    Raises:
        ValueError: the text is not one of them.
    """
    try:
        return _by_name(text, world_size, cost, seed)
    except ValueError as error:
        raise ValueError(f"compression {text!r}: {error}. Known: {known_compressions()}") from error


def _by_name(text: str, world_size: int, cost: CostModel | None, seed: int) -> Compressor:
    method, _, lanes = text.partition("/")
    name, _, argument = method.partition(":")
    lane_bits = LANES.get(lanes)
    if lane_bits is None:
        raise ValueError(f"lanes are int16, int8 or int4, not {lanes!r}")
    make = _find(name).make
    cost = SwitchLink(world_size, 1e8, 1e-3) if cost is None else cost
    if isinstance(cost, SwitchLink):
        cost = link = replace(cost, lane_bits=lane_bits)
    else:
        # Whatever a rank pays for: frames are counted as they are, without rate or round trip.
        link = SwitchLink(world_size, 1e8, lane_bits=lane_bits)
    over = DenseSwitchOver(link)
    return make(Settings(name, argument, world_size, lane_bits, seed, cost, over))


def _find(name: str) -> _CompressorEntry:
    _load_own()
    if name not in _registered and (point := _others().get(name)):
        failed = _load(point)
        if failed:
            raise ValueError(failed)
    if name not in _registered:
        raise ValueError("no compressor has that name")
    return _registered[name]


def _load_own() -> None:
    for module in pkgutil.iter_modules(import_module(OWN).__path__, f"{OWN}."):
        import_module(module.name)


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> str:
    """Import an entry point's module. Returns what is wrong with it, for people; else ""."""
    try:
        point.load()
    except Exception as error:  # others' code may raise anything
        return f"{point.value}, of {GROUP}, cannot be loaded: {type(error).__name__}: {error}"
    if point.name not in _registered:
        return f"{point.value}, of {GROUP}, does not register {point.name!r}"
    return ""


def _place(make: Make) -> tuple[str, str]:
    """So that a module that is loaded again takes its own place."""
    return make.__module__, make.__qualname__
