# SPDX-License-Identifier: Apache-2.0
"""The time of a step of synchronous data-parallel training, and what faster sums gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

FORWARD_SHARE = 1 / 3
"""Of a step's computing: backward takes about twice as many operations as forward, one pass for
the gradients of the inputs and one for those of the weights."""


@dataclass(frozen=True)
class TrainingStep:
    """What one rank computes in a step.

    Attributes:
        compute: seconds of forward, backward and optimiser together.
        buckets: elements of each, in the order in which their gradients are there: these are summed
            one after the other, each by a call.
        ready: for each bucket, when it can be summed, as a share of `compute`.
        batch: samples that each rank takes.
    """

    compute: float
    buckets: tuple[int, ...]
    ready: tuple[float, ...]
    batch: int = 0

    def __post_init__(self) -> None:
        if not self.compute > 0:
            raise ValueError(f"{self.compute} s of computing in a step; it must be above 0")
        if not self.buckets or len(self.buckets) != len(self.ready):
            raise ValueError(f"{len(self.buckets)} buckets with {len(self.ready)} moments")
        if any(size < 0 for size in self.buckets):
            raise ValueError(f"{self.buckets}: a bucket has no negative size")
        if any(not 0 <= moment <= 1 for moment in self.ready):
            raise ValueError(f"{self.ready}: shares of a step are from 0 to 1")

    @property
    def parameters(self) -> int:
        """Elements of all gradients."""
        return sum(self.buckets)

    def with_compute(self, factor: float) -> TrainingStep:
        """Return the same with a batch this many times as large. Computing grows in proportion."""
        return replace(self, compute=self.compute * factor)


def even_step(
    compute: float, parameters: int, bucket: int, batch: int = 0, forward: float = FORWARD_SHARE
) -> TrainingStep:
    """Return a step whose gradients become ready at an even pace during backward.

    Args:
        compute: seconds.
        parameters: of the model.
        bucket: elements of a bucket at most, as DistributedDataParallel's `bucket_cap_mb` says.
        batch: samples of each rank.
        forward: the share of `compute` before the first gradient can be there.

    Raises:
        ValueError: no parameters, or a bucket of none.
    """
    if parameters < 1:
        raise ValueError(f"{parameters} parameters; a model has at least one")
    if bucket < 1:
        raise ValueError(f"buckets of {bucket} elements; at least 1 is needed")
    count = math.ceil(parameters / bucket)
    sizes = tuple(min(bucket, parameters - start) for start in range(0, parameters, bucket))
    done = [sum(sizes[: number + 1]) / parameters for number in range(count)]
    return TrainingStep(
        compute, sizes, tuple(forward + (1 - forward) * share for share in done), batch
    )


@dataclass(frozen=True)
class StepTime:
    """A step with its sums.

    Attributes:
        compute: seconds.
        communication: seconds of all sums together.
        after: of a step whose sums all come after its computing.
        overlapped: of one that sums a bucket as soon as it is there.
    """

    compute: float
    communication: float
    after: float
    overlapped: float

    @property
    def share(self) -> float:
        """The share of communication in a step without overlap."""
        return self.communication / self.after if self.after else 0.0

    @property
    def exposed(self) -> float:
        """The seconds that the overlapped step waits for sums."""
        return self.overlapped - self.compute


def step_time(step: TrainingStep, seconds: Callable[[int], float]) -> StepTime:
    """Return how long a step takes.

    Sums run one at a time, in the order of buckets. Each begins when its bucket is ready and the
    previous sum is over.

    Args:
        step: what is computed.
        seconds: maps a number of elements to the seconds that their sum takes.
    """
    by_size = {size: seconds(size) for size in set(step.buckets)}
    each = [by_size[size] for size in step.buckets]
    through = 0.0
    for moment, own in zip(step.ready, each, strict=True):
        through = max(through, moment * step.compute) + own
    total = sum(each)
    return StepTime(step.compute, total, step.compute + total, max(through, step.compute))


def amdahl(share: float, faster: float) -> float:
    """Return the speed-up of the whole if a share of it becomes `faster` times as fast.

    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", 1967. `faster` may be infinite.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share}; it is from 0 to 1")
    if not faster > 0:
        raise ValueError(f"{faster} times as fast; it must be above 0")
    rest = 1 - share
    return 1 / (rest + share / faster) if rest + share / faster > 0 else math.inf


def efficiency(ranks: int, overhead: float) -> float:
    """Return the efficiency of a training: its speed-up divided by `ranks`.

    Zou et al., "Distributed Training Large-Scale Deep Architectures" (2017), on the number of GPUs.
    G ranks take T_C / G + T_O instead of T_C + T_O. With R_O = T_O / T_C that makes the efficiency
    α = (1 + R_O) / (1 + G R_O). T_O is taken to be the same for all G, as with sums by a switch.

    Args:
        ranks: G, which share the computing of a batch.
        overhead: R_O, the seconds of a sum for each second that one rank computes for the batch.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks; a training run has at least one")
    if not overhead >= 0:
        raise ValueError(f"an overhead of {overhead} times the computing; it must be 0 or above")
    return (1 + overhead) / (1 + ranks * overhead)


def hiding_factor(step: TrainingStep, each: Sequence[float], *, waits: float = 0.05) -> float:
    """Return the factor by which the batch must grow, or may shrink, for the sums to hide.

    They hide if an overlapped step waits for them for no more than `waits` of its computing. The
    last bucket's sum always comes after the last gradient, so a share of 0 is never reached. This
    is the rule of Zou et al., "Distributed Training Large-Scale Deep Architectures" (2017): the
    communication of a minibatch has to fit into its computing. Here only what overlaps counts.

    Args:
        step: with its present batch.
        each: seconds of each bucket's sum, which do not depend on the batch.
        waits: as a share of the computing.
    """
    # What follows the moment when bucket i is there: sums i, i+1, … have to be through by the
    # end, T (1 + waits), so T (1 + waits - ready_i) >= sum of each[i:].
    factor, rest = 0.0, 0.0
    for moment, own in zip(reversed(step.ready), reversed(each), strict=True):
        rest += own
        room = 1 + waits - moment
        factor = max(factor, rest / (room * step.compute) if room > 0 else math.inf)
    return factor
