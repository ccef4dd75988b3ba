# SPDX-License-Identifier: Apache-2.0
"""A hook's state between calls: the path to the switch, and what compressors remember."""

from __future__ import annotations

import math
import time
import weakref
from typing import Any

import numpy as np
import torch.distributed as dist

from p4reduce.communicator import Communicator
from p4reduce.compression import (
    Compressor,
    HierarchicalTopK,
    SwitchLink,
    compressor_by_name,
    measure_link,
)
from p4reduce.tensors.copy_pool import CopyPool
from p4reduce.torch.channel import Channel
from p4reduce.torch.group import ours
from p4reduce.torch.threads import at_exit


class HookState:
    """The state object of all hooks; one for each model.

    Args:
        group: a process group of the backend "p4reduce", or a communicator that
            `p4reduce.init` made, beside whatever backend DDP has. None: the default group.
        error_feedback: of `int16_hook`, `int8_hook` and `int4_hook`: add what rounding leaves out
            to the next step's gradient (`residual` of `Communicator.allreduce`). Training fails
            with lanes of 4 bits and 4 ranks or more: the error is larger than the gradient.
        density: of `topk_hook` and `elements_hook`: the share of the blocks or elements that a rank
            sends, above 0 and up to 1; of `hierarchical_hook`: that a leaf sends.
        compressor: of `compressed_hook`: a name or an object; of `cat_hook` and `topk_hook`: one
            in place of their own.
        seed: of the random rounding; None: another one in each run.
        link: what `cat_hook` weighs its levels against, beside what a step costs otherwise; None:
            measured in the first backward pass, with about 14 kB per slot of the job.
        deadline: of `deadline_hook`: seconds that a bucket waits for late ranks; None: not given.
        at_least: of `deadline_hook`: the least number of ranks in a mean.

    Raises:
        TypeError, ValueError: the group is not one of the switch's; there is no such compressor.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        error_feedback: bool = False,
        density: float = 0.01,
        compressor: str | Compressor | None = None,
        seed: int | None = None,
        link: SwitchLink | None = None,
        deadline: float | None = None,
        at_least: int = 1,
    ) -> None:
        self.channel = channel_of(group)
        self.error_feedback = error_feedback
        self.density = density
        self.seed = seed
        self.deadline = deadline
        self.at_least = at_least
        self.kept: dict[str, Any] = {}  # of each bucket: what was left out; arrays, or tensors
        self.spare = CopyPool()  # memory that arrays of earlier steps have left
        self._link = link
        self._compressor = compressor
        self._made: dict[str, Compressor] = {}
        self._hierarchy: HierarchicalTopK | None = None
        self._parameters: dict[int, tuple[int, ...]] = {}
        self._all_on_device: bool | None = None
        self._buckets = 0  # of the last backward pass; 0: there was none

    def sent_of(self, count: int) -> int:
        """Return how many of some blocks or elements a rank sends, by `density`.

        Raises:
            ValueError: `density` is out of range.
        """
        if not 0 < self.density <= 1:
            raise ValueError(f"density={self.density!r}: above 0 and up to 1 is needed")
        return math.ceil(self.density * count)

    @property
    def compresses(self) -> bool:
        """Whether the user has given a compressor."""
        return self._compressor is not None

    def compressor(self, name: str = "") -> Compressor:
        """Return the compressor, which is made at the first call.

        Args:
            name: the hook's own, used if the user named none; "": it has none.

        Raises:
            ValueError: there is no such compressor, or none was given.
        """
        if isinstance(self._compressor, Compressor):
            return self._compressor
        chosen = self._compressor or name
        if not chosen:
            raise ValueError("compressed_hook needs HookState(compressor=…)")
        if chosen not in self._made:
            size, seed = self.channel.size, self.seed or 0
            made = compressor_by_name(chosen, size, self._link, seed=seed)
            made.count_time(time.monotonic)
            self._made[chosen] = made
        return self._made[chosen]

    def measure(self, compressor: Compressor) -> None:
        """Measure the link before a compressor's first choice, if the compressor uses it.

        All ranks call it in the same turn. A compressor that the user made keeps its link.
        """
        made_here = any(compressor is made for made in self._made.values())
        if self._link is not None or not (made_here and compressor.prices):
            return
        comm = self.channel.comm
        self._link = measure_link(comm, blocks=4 * comm.slots, repetitions=2)
        for made in self._made.values():
            made.weigh(self._link)

    def rounding_seed(self, compressor: Compressor) -> int | None:
        """Return the seed for rounding to narrow lanes."""
        return compressor.seed if compressor is self._compressor else self.seed

    def hierarchy(self) -> HierarchicalTopK:
        """Return what sums in two levels. The first call is a collective: it splits the ranks."""
        if self._hierarchy is None:
            made = HierarchicalTopK(self.channel.comm, self.density, seed=self.seed)
            _communicators.update((made.within, made.across))
            self._hierarchy = made
        return self._hierarchy

    def all_on_device(self, here: bool) -> bool:
        """Return whether all ranks' buckets are an accelerator's, so that all round them there.

        If torch has an accelerator on some rank, the first call is a collective, and waits.

        Args:
            here: whether this rank's buckets are.
        """
        if not self.channel.accelerated:
            return False
        if self._all_on_device is None:
            votes, channel = np.array([here], np.int32), self.channel
            handle = channel.order.take(
                lambda: channel.comm.allreduce_async(votes, name="accelerators", out=votes)
            )
            channel.waiter(handle, "accelerators")(None)
            self._all_on_device = votes[0] == channel.size
        return self._all_on_device

    def priority(self, bucket: Any) -> int:
        """Return a bucket's class. The next forward pass needs the last buckets first.

        The highest class is the last bucket's alone. The others share the lower classes evenly.
        Their number is that of the pass before. Until it is known, and while it was 1, they have
        class 0.
        """
        highest, index = len(self.channel.comm.class_slots) - 1, bucket.index()
        if bucket.is_last():
            self._buckets = index + 1
            return highest
        others = self._buckets - 1
        return min(index * highest // others, max(highest - 1, 0)) if others > 0 else 0

    def name(self, bucket: Any) -> str:
        """Return a bucket's name, and forget state of buckets that were rebuilt.

        DDP sorts the parameters into other buckets after the first step. What the old ones have not
        sent then belongs to other parameters.
        """
        index = bucket.index()
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        if self._parameters.setdefault(index, parameters) != parameters:
            self._parameters = {index: parameters}
            self.kept.clear()
            if self._hierarchy is not None:
                self._hierarchy.reset()
            for compressor in self._made.values():
                compressor.states.clear()
            if isinstance(self._compressor, Compressor):
                self._compressor.states.clear()
        return f"bucket{index}"


_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _leave_all() -> None:
    """At exit, leave the jobs of open communicators, so that nobody waits for their futures."""
    for comm in list(_communicators):
        comm.__exit__(RuntimeError, None, None)


at_exit(_leave_all)


def channel_of(group: Any) -> Channel:
    """Return the path through the switch of a process group or communicator; None: the default.

    Raises TypeError, ValueError: it has none.
    """
    if isinstance(group, Communicator):
        _communicators.add(group)
        return Channel(group, (), None)
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group={group!r}: a process group or a p4reduce.Communicator is needed, or None after "
            'init_process_group("p4reduce")'
        )
    backend = ours(group)
    if backend is not None and backend.channel is not None:
        return backend.channel
    if backend is not None:
        raise ValueError(
            f"group {group.group_name!r} has no job on the switch, because it has one rank"
        )
    raise ValueError(
        f"group {group.group_name!r} has another backend: give one of "
        'init_process_group("p4reduce"), or a communicator of p4reduce.init()'
    )
