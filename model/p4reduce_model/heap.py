# SPDX-License-Identifier: Apache-2.0
"""Takes back Python objects to what they were: snapshots of all that some roots lead to.

The worker's state machine is not written to be copied: numpy views share memory, collectives are
in several containers at once. So a snapshot keeps the objects themselves and what each of them
holds, and restoring puts that back in place. Nothing here knows the fields of any class: one that
is new is part of the state until somebody says why it need not be (`Heap.without`).
"""

from __future__ import annotations

import enum
import hashlib
import marshal
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from p4reduce.latch import Latch

_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_ATOMS = (int, float, str, bytes, enum.Enum, np.generic, slice, type)


@dataclass(frozen=True)
class Image:
    """What objects held at one moment."""

    contents: tuple[tuple[Any, Any], ...]  # (object, what it held)
    digest: bytes  # the same for equal contents, whatever the objects' addresses

    def differences(self, other: Image) -> list[str]:
        """Say which arrays, plain attributes and lengths are not alike: "SlotMachine._parts"."""
        theirs = {id(thing): held for thing, held in other.contents}
        names: dict[int, str] = {}
        found = set()
        for thing, held in self.contents:
            kind = type(thing).__name__
            beside = theirs.get(id(thing), held)
            if isinstance(thing, np.ndarray | Latch):
                if held != beside:
                    found.add(names.get(id(thing), kind))
                continue
            if isinstance(thing, dict | set | list | deque):
                if len(held) != len(beside):
                    found.add(names.get(id(thing), kind))
                continue
            for (name, value), (_, another) in zip(held, beside, strict=True):
                names[id(value)] = f"{kind}.{name}"
                if type(value) in _PLAIN and value != another:
                    found.add(f"{kind}.{name}")
        return sorted(found)


class Heap:
    """The mutable objects that can be reached from `roots`.

    Args:
        roots: where to start; always the same objects. Arrays that share memory may be among what
            they lead to: they hold the same, and get it back twice.
        without: attributes by (class name, name) that are no part of the state.
        module: instances of classes in this package, or derived from them, are looked into; any
            other object that is neither plain data nor a known container is an error.

    Raises:
        TypeError: at `capture`, naming an object of a kind that is not known.
    """

    def __init__(
        self, roots: Iterable[Any], *, without: Iterable[tuple[str, str]] = (), module: str
    ) -> None:
        self._roots = list(roots)
        self._without = frozenset(without)
        self._module = module
        self._names: dict[type, list[str]] = {}  # an object has all its attributes from its start
        self._shared: dict[bytes, bytes] = {}  # equal arrays of many images are kept once

    def capture(self) -> Image:
        """Return what everything holds now."""
        walk = _Walk(self._fields, self._shared)
        for root in self._roots:
            walk.visit(root)
        digest = hashlib.blake2b(marshal.dumps(walk.tokens, 2), digest_size=16).digest()
        return Image(tuple(walk.contents), digest)

    @staticmethod
    def restore(image: Image) -> None:
        """Put everything back to what it held when `image` was taken."""
        for target, held in image.contents:
            if isinstance(target, np.ndarray):
                target[...] = np.frombuffer(held, target.dtype).reshape(target.shape)
            elif isinstance(target, dict | set):
                target.clear()
                target.update(held)
            elif isinstance(target, list):
                target[:] = held
            elif isinstance(target, deque):
                target.clear()
                target.extend(held)
            elif isinstance(target, Latch):
                target.set() if held else target.clear()
            else:
                for name, value in held:
                    object.__setattr__(target, name, value)  # some are frozen

    def _fields(self, thing: object) -> list[tuple[str, Any]]:
        """The attributes of an object that are part of the state."""
        names = self._names.get(type(thing))
        if names is None:
            names = self._names[type(thing)] = self._names_of(thing)
        return [(name, getattr(thing, name)) for name in names]

    def _names_of(self, thing: object) -> list[str]:
        kind = type(thing)
        if all(base.__module__.partition(".")[0] != self._module for base in kind.__mro__):
            raise TypeError(
                f"cannot take a snapshot of {thing!r}: say how in heap.py, or leave out the "
                "attribute that leads to it"
            )
        names = list(getattr(thing, "__dict__", ()))
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        left_out = {name for base, name in self._without if base in map(_name_of, kind.__mro__)}
        return sorted(set(names) - left_out)


def _name_of(kind: type) -> str:
    return kind.__name__


class _Walk:
    """One walk over the objects, each visited once."""

    def __init__(
        self, fields: Callable[[object], list[tuple[str, Any]]], shared: dict[bytes, bytes]
    ) -> None:
        self.tokens: list[Any] = []
        self.contents: list[tuple[Any, Any]] = []
        self._fields = fields
        self._shared = shared
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no address is used twice meanwhile

    def visit(self, thing: Any) -> None:
        tokens, kind = self.tokens, type(thing)
        if kind in _PLAIN:
            tokens.append(thing)
            return
        seen = self._numbers.get(id(thing))
        if seen is not None:
            tokens += ("again", seen)
            return
        if kind is np.ndarray:
            self._begin(thing)
            held = thing.tobytes()
            held = self._shared.setdefault(held, held)
            self.contents.append((thing, held))
            tokens.append(held)
        elif isinstance(thing, np.dtype):
            tokens.append(thing.str)
        elif isinstance(thing, _ATOMS):
            tokens.append(f"{kind.__name__}:{thing!r}")
        else:
            self._begin(thing)
            self._visit_container(thing)

    def _begin(self, thing: Any) -> None:
        self._numbers[id(thing)] = len(self._numbers)
        self._kept.append(thing)
        self.tokens.append(type(thing).__name__)

    def _visit_container(self, thing: Any) -> None:
        if isinstance(thing, dict):
            self.contents.append((thing, tuple(thing.items())))
            self._visit_all(part for item in thing.items() for part in item)
        elif isinstance(thing, list | deque):
            self.contents.append((thing, tuple(thing)))
            self._visit_all(thing)
        elif isinstance(thing, tuple):
            self._visit_all(thing)
        elif isinstance(thing, set):
            self.contents.append((thing, tuple(thing)))
            self._visit_all(sorted(thing))
        elif isinstance(thing, Latch):
            self.contents.append((thing, thing.is_set()))
            self.tokens.append(thing.is_set())
        elif isinstance(thing, BaseException):
            # Errors are not changed once they are made.
            self.tokens.append(str(thing))
        else:
            fields = self._fields(thing)
            self.contents.append((thing, fields))
            for _, value in fields:
                self.visit(value)

    def _visit_all(self, things: Iterable[Any]) -> None:
        things = list(things)
        self.tokens.append(len(things))
        for thing in things:
            self.visit(thing)
