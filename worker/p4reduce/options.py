# SPDX-License-Identifier: Apache-2.0
"""The keyword options of `init` and of a communicator's calls, as typed groups (PEP 692).

Each option's meaning stands in the docstring of the function that takes it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from p4reduce.checks import check_timeout, number_within
from p4reduce.environment import urgent_slots as kept_for_urgent
from p4reduce.wire.format import MAX_SLOTS

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Required


class NetworkOptions(TypedDict, total=False):
    """Of `init`: how this rank reaches the others."""

    interface: str | Sequence[str] | None
    network: Mapping[str, str] | None
    check: Callable[[], None] | None
    engine: str


class RecoveryOptions(TypedDict, total=False):
    """Of `init`: what follows the loss of a switch."""

    recover: bool
    fallback: str | None
    fallback_after: float
    ring_address: str | None


class SlotOptions(TypedDict, total=False):
    """Of `init`, `split` and `dup`: what a communicator gets of a switch."""

    slots: int | None
    urgent_slots: int | Sequence[int] | None


class GroupOptions(SlotOptions, total=False):
    """Of `split` and `dup`."""

    timeout: float | None


class InitOptions(NetworkOptions, RecoveryOptions, SlotOptions, total=False):
    """Of `init`."""

    check_shapes: bool | None


class SumOptions(TypedDict, total=False):
    """Of each sum."""

    precision: str | None
    seed: int | None


class AllreduceOptions(SumOptions, total=False):
    """Of `allreduce` of any array."""

    priority: int | str


class DenseOptions(AllreduceOptions, total=False):
    """Of `allreduce` of a dense array."""

    residual: npt.NDArray[Any] | None


class SparseOptions(SumOptions, total=False):
    """Of `allreduce_sparse`."""

    agree: bool | None


class DeadlineOptions(TypedDict, total=False):
    """Of `allreduce` with a deadline."""

    deadline: Required[float]
    precision: str | None
    at_least: int
    feedback: bool


class AnyAllreduceOptions(DenseOptions, total=False):
    """Of `allreduce`: all that there are."""

    deadline: float | None
    at_least: int
    feedback: bool


class GroupedOptions(SumOptions, total=False):
    """Of `grouped_allreduce`, for all of its arrays."""

    fusion_threshold: int


@dataclass(frozen=True)
class CommunicatorOptions:
    """The options of a communicator, checked; its children inherit them.

    Attributes:
        timeout: the default timeout of collectives, in seconds.
        slots: of the switch; 0: the controller's default.
        urgent_slots: how many of the slots are for classes 1, 2 and so on.
        check_shapes: whether the ranks agree on shapes, or on numbers of elements alone.
        spans: whether spans are recorded from the start.
    """

    timeout: float
    slots: int = 0
    urgent_slots: tuple[int, ...] = ()
    check_shapes: bool = True
    spans: bool = False

    def of_group(
        self,
        timeout: float | None = None,
        slots: int | None = None,
        urgent_slots: int | Sequence[int] | None = None,
    ) -> CommunicatorOptions:
        """Return those of a child, for which None says nothing. Raises TypeError, ValueError."""
        options = self
        if timeout is not None:
            check_timeout(timeout)
            options = replace(options, timeout=timeout)
        if slots is not None:
            hint = ", or None for as many as this communicator asked for"
            options = replace(options, slots=number_within("slots", slots, 1, MAX_SLOTS, hint))
        if urgent_slots is not None:
            options = replace(options, urgent_slots=kept_for_urgent(urgent_slots))
        return options


def check_names(function: str, given: Mapping[str, Any], known: type) -> None:
    """Refuse options that a group has not.

    Args:
        function: that the caller has called, for the message.
        given: the options.
        known: the `TypedDict` that has all of them.

    Raises:
        TypeError: names the option, and the known one that is most like it.
    """
    names = known.__annotations__
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() has no option {name!r}{meant}")
