# SPDX-License-Identifier: Apache-2.0
"""All ranks in one process without a switch, to try or check a method.

Sums are taken in the order of the ranks, so a run gives the same bits each time. Ranks are threads
of which one runs at a time, until it waits for the others. So there are no races, and a deadlock is
an error at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from p4reduce_common.threads import new_thread

T = TypeVar("T")
BLOCK = 256  # lanes of 32 bits

Adder = Callable[[tuple[int, ...], list[npt.NDArray[Any]], str | None], npt.NDArray[Any]]
"""Adds the arrays of these ranks, in lanes of a precision: where a switch is to do it."""


@dataclass
class InProcessTraffic:
    """The traffic that a switch would have had, counted by all ranks of `run` together.

    Attributes:
        calls: all-reduces.
        uploads: contributions that are not all zeros, of one rank to one all-reduce.
        elements: numbers in all all-reduces, of one rank each.
    """

    calls: int = 0
    uploads: int = 0
    elements: int = 0
    patterns: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many all-reduces had so many ranks in them, of which so many uploads."""


class LostError(RuntimeError):
    """Another rank has ended or called something else, and will not take part in this sum."""


def run(
    size: int,
    work: Callable[[InProcess], T],
    traffic: InProcessTraffic | None = None,
    adder: Adder | None = None,
) -> list[T]:
    """Run `work` as each of `size` ranks; return the results of all ranks.

    Args:
        size: the number of ranks, 1 or more.
        work: gets its rank's communicator.
        traffic: counts the traffic; None: not counted.
        adder: adds the arrays; None: numpy.

    Raises:
        ValueError: `size` is below 1.
        Exception: that of the first rank which failed for another reason than the loss of a rank.
    """
    outcomes = outcomes_of(size, work, traffic, adder)
    errors = [one for one in outcomes if isinstance(one, BaseException)]
    if errors:
        raise next((error for error in errors if not isinstance(error, LostError)), errors[0])
    return [one for one in outcomes if not isinstance(one, BaseException)]


def outcomes_of(
    size: int,
    work: Callable[[InProcess], T],
    traffic: InProcessTraffic | None = None,
    adder: Adder | None = None,
) -> list[T | BaseException]:
    """As `run`, but the result of a failed rank is its exception."""
    if size < 1:
        raise ValueError(f"size={size}: at least one rank is needed")
    world = _World(size, traffic if traffic is not None else InProcessTraffic(), adder)
    outcomes: dict[int, T | BaseException] = {}

    def rank(number: int) -> None:
        world.locks[number].acquire()
        try:
            outcomes[number] = work(InProcess(world, tuple(range(size)), number, ()))
        except BaseException as error:
            outcomes[number] = error
        world.leave(number)

    threads = [new_thread(rank, f"rank-{number}", args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    world.go_on()
    for thread in threads:
        thread.join()
    return [outcomes[number] for number in range(size)]


class _World:
    """Whose turn it is, and the collectives that wait for somebody."""

    def __init__(self, size: int, traffic: InProcessTraffic, adder: Adder | None) -> None:
        self.locks = [threading.Lock() for _ in range(size)]
        for lock in self.locks:
            lock.acquire()
        self.traffic = traffic
        self.adder = adder
        self._ready = deque(range(size))
        self._there: dict[tuple[Any, ...], dict[int, Any]] = {}
        self._results: dict[int, Any] = {}
        self._waiting: set[int] = set()

    def go_on(self) -> None:
        """Let the next rank run. If all that are left wait, none of them can be helped."""
        if not self._ready:
            lost = LostError("the other ranks have ended, or called something else")
            for number in sorted(self._waiting):
                self._results[number] = lost
                self._ready.append(number)
            self._waiting.clear()
            self._there.clear()
        if self._ready:
            self.locks[self._ready.popleft()].release()

    def leave(self, number: int) -> None:
        """A rank has ended."""
        self.go_on()

    def meet(
        self,
        place: tuple[Any, ...],
        members: tuple[int, ...],
        number: int,
        value: Any,
        combine: Callable[[list[Any]], Any],
    ) -> Any:
        """Wait until all members have arrived; return what `combine` makes of their values."""
        there = self._there.setdefault(place, {})
        there[number] = value
        if len(there) == len(members):
            del self._there[place]
            result = combine([there[member] for member in members])
            for member in members:
                if member != number:
                    self._results[member] = result
                    self._waiting.discard(member)
                    self._ready.append(member)
            return result
        self._waiting.add(number)
        self.go_on()
        self.locks[number].acquire()
        result = self._results.pop(number)
        if isinstance(result, LostError):
            raise LostError(*result.args)
        return result


class InProcess:
    """A rank's communicator, made by `run` and by `split`."""

    def __init__(
        self, world: _World, members: tuple[int, ...], number: int, name: tuple[int, ...]
    ) -> None:
        self._world = world
        self._members = members
        self._number = number
        self._name = name
        self._calls = 0

    def __repr__(self) -> str:
        return f"InProcess(rank={self.rank}, size={self.size})"

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self._members.index(self._number)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self._members)

    def _meet(self, kind: Any, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        self._calls += 1
        place = (self._name, self._members, self._calls, kind)
        return self._world.meet(place, self._members, self._number, value, combine)

    def allreduce(
        self, array: npt.NDArray[Any], *, name: str | None = None, precision: str | None = None
    ) -> npt.NDArray[Any]:
        """Return the exact sum over all ranks, whatever the precision, as a new array.

        Only "wrap32" has an effect: integers are then added modulo 2^32.

        Raises:
            OverflowError: a sum of integers leaves the dtype's range.
            LostError: a rank has ended, or sums another shape or dtype.
        """
        array = np.asarray(array)

        def total(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return self._sum(arrays, name, precision)

        kind = (array.shape, array.dtype.str, name, precision)
        result: npt.NDArray[Any] = self._meet(kind, array, total)
        return np.array(result)

    def _sum(
        self, arrays: list[npt.NDArray[Any]], name: str | None, precision: str | None
    ) -> npt.NDArray[Any]:
        first = arrays[0]
        traffic = self._world.traffic
        traffic.calls += 1
        traffic.elements += first.size
        uploads = sum(1 for array in arrays if array.any())
        traffic.uploads += uploads
        pattern = (len(arrays), uploads)
        traffic.patterns[pattern] = traffic.patterns.get(pattern, 0) + 1
        if self._world.adder is not None:
            return self._world.adder(self._members, arrays, precision)
        if first.dtype.kind != "i":
            result: npt.NDArray[Any] = arrays[0].copy()
            for array in arrays[1:]:
                result += array
            return result
        wide: npt.NDArray[Any] = np.sum([array.astype(np.int64) for array in arrays], axis=0)
        limits = np.iinfo(first.dtype)
        if (
            precision != "wrap32"
            and wide.size
            and (wide.max() > limits.max or wide.min() < limits.min)
        ):
            raise OverflowError(f"{name or 'allreduce'}: a sum leaves {first.dtype}")
        narrow: npt.NDArray[Any] = wide.astype(first.dtype)
        return narrow

    def confer(self, value: T) -> list[T]:
        """Return what each rank passes here. It is for observers: nothing counts as traffic."""
        gathered: list[T] = self._meet("confer", value, list)
        return gathered

    def split(
        self, color: int | None, key: int = 0, *, slots: int | None = None
    ) -> InProcess | None:
        """Return a communicator of the ranks with the same colour, by key; None for no colour.

        There are no slots in one process.
        """
        wish = (color, key, self._number)
        wishes: list[tuple[int | None, int, int]] = self._meet("split", wish, list)
        if color is None:
            return None
        group = sorted((k, number) for c, k, number in wishes if c == color)
        members = tuple(number for _, number in group)
        return InProcess(self._world, members, self._number, (*self._name, self._calls, color))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
