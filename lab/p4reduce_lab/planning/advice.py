# SPDX-License-Identifier: Apache-2.0
"""The planner: the speed-up of each way to sum, and the commands to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from p4reduce.tensors.precision import PRECISIONS
from p4reduce.tensors.stochastic import largest_world_size

from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import (
    LARGEST_FANOUT,
    MOST_SIDE_BY_SIDE,
    SWITCHES,
    PlannedNetwork,
)
from p4reduce_lab.planning.schemes import Cluster, Estimate, by_ring, by_switches
from p4reduce_lab.planning.sizing import (
    Pool,
    fanout_for_line_rate,
    frame_rate,
    pool,
    switches_for_line_rate,
)
from p4reduce_lab.planning.training import StepTime, TrainingStep, amdahl, hiding_factor, step_time
from p4reduce_lab.units import in_words, rate_in_words

RING = "ring over TCP"

_WITHOUT_HOST_LINKS = tuple(SWITCHES[name] for name in ("hardware", "tofino2", "embedded-memory"))
"""Switches whose ports are not interfaces of a host."""


@dataclass(frozen=True)
class Question:
    """The planner's input.

    Attributes:
        cluster: links, switches and ranks.
        step: of the training.
        density: the share of the gradients' blocks that a rank has.
        overlap: see `framing.OVERLAPS`.
    """

    cluster: Cluster
    step: TrainingStep
    density: float = 1.0
    overlap: str = "independent"


@dataclass(frozen=True)
class Option:
    """One way to sum.

    Attributes:
        name: for people.
        time: of a step.
        octets: that a rank sends in a step, in whole frames.
        faster: how many times as fast as by the ring an overlapped step is.
        hides: by how much the batch would have to grow for the sums to hide behind computing.
        switches: their number.
        further: whether it needs more switches or links than the question has.
    """

    name: str
    time: StepTime
    octets: float
    faster: float
    hides: float
    switches: int
    further: bool = False


@dataclass(frozen=True)
class Advice:
    """The planner's answer.

    Attributes:
        question: what was asked.
        options: the ring first.
        best: the fastest of them that sends float32 as it is and needs no further switches or
            links.
        fastest: as `best`, with further hardware too; the same one if that is no faster.
        network: of one switch, or the tree where one is not enough.
        pool: slots and window for it.
        limit: what keeps it from being faster, and contributions per second of each rank.
        side_by_side: how many switches it takes until they limit nothing.
        reasons: sentences.
    """

    question: Question
    options: tuple[Option, ...]
    best: Option
    fastest: Option
    network: PlannedNetwork
    pool: Pool
    limit: tuple[float, str]
    side_by_side: int
    reasons: tuple[str, ...]


def advise(question: Question) -> Advice:
    """Answer a question by the model of time."""
    cluster, step = question.cluster, question.step
    small = cluster.ranks <= LARGEST_FANOUT
    network = cluster.star() if small else cluster.tree()
    needed = switches_for_line_rate(cluster) if small else 1
    name = "one switch" if small else _tree_name(network)
    ring_time = step_time(step, lambda n: by_ring(cluster, PlannedTensor(n)).seconds)
    options = [_option(step, RING, lambda n: by_ring(cluster, PlannedTensor(n)), ring_time, 0)]
    for what, tensor, on, further in _ways(question, name, network, needed):

        def estimate(n: int, tensor: PlannedTensor = tensor, on: PlannedNetwork = on) -> Estimate:
            return by_switches(cluster, replace(tensor, elements=n), on)

        options.append(_option(step, what, estimate, ring_time, on.switches, further))
    best = _fastest(one for one in options if not one.further)
    fastest = _fastest(options)
    limit = frame_rate(network)
    answer = pool(network)
    reasons = tuple(_reasons(question, options, best, fastest, network, answer, limit, needed))
    return Advice(question, tuple(options), best, fastest, network, answer, limit, needed, reasons)


def _ways(
    question: Question, name: str, network: PlannedNetwork, needed: int
) -> Iterator[tuple[str, PlannedTensor, PlannedNetwork, bool]]:
    """Ways to sum by switches: name, tensor, network, and whether it takes further hardware."""
    cluster = question.cluster
    yield name, PlannedTensor(0), network, False
    for precision in ("int16", "int8", "int4"):
        if cluster.ranks <= largest_world_size(PRECISIONS[precision]):
            yield f"{name}, {precision}", PlannedTensor(0, precision), network, False
    if question.density < 1:
        sparse = PlannedTensor(0, "int32", question.density, question.overlap)
        yield f"{name}, {question.density:.3g} of the blocks", sparse, network, False
    if cluster.ranks <= LARGEST_FANOUT:
        for count in sorted({2, min(needed, MOST_SIDE_BY_SIDE)} - {1}):
            own = f"{count} links per rank" if cluster.trunk is None else f"{count} machines"
            yield (
                f"{count} switches side by side, {own}",
                PlannedTensor(0),
                cluster.star(count),
                True,
            )
    fanout = fanout_for_line_rate(cluster)
    if cluster.trunk is None and fanout < max(network.fanouts):
        narrow = replace(cluster, fanout=fanout).tree()
        yield _tree_name(narrow), PlannedTensor(0), narrow, True


def _fastest(options: Iterable[Option]) -> Option:
    """The fastest that sends float32 as it is."""
    exact = [one for one in options if "int" not in one.name]
    return min(exact, key=lambda one: (one.time.overlapped, one.switches))


def _option(
    step: TrainingStep,
    name: str,
    estimate: Callable[[int], Estimate],
    ring: StepTime,
    switches: int,
    further: bool = False,
) -> Option:
    found = {size: estimate(size) for size in set(step.buckets)}
    time = step_time(step, lambda size: found[size].seconds)
    each = [found[size].seconds for size in step.buckets]
    return Option(
        name,
        time,
        sum(found[size].octets for size in step.buckets),
        ring.overlapped / time.overlapped,
        hiding_factor(step, each),
        switches,
        further,
    )


def _tree_name(network: PlannedNetwork) -> str:
    most = max(network.fanouts)
    return f"tree of {network.switches:,} switches with up to {most} children"


def _reasons(
    question: Question,
    options: list[Option],
    best: Option,
    fastest: Option,
    network: PlannedNetwork,
    sizes: Pool,
    limit: tuple[float, str],
    needed: int,
) -> Iterator[str]:
    cluster, ring, switches = question.cluster, options[0], options[1]
    line_rate = 1 / cluster.port_link.seconds(cluster.switch.frame)
    rate, what = limit
    yield f"With {switches.name}, {what} allow {rate:,.0f} contributions/s per rank" + (
        f"; a link of {rate_in_words(cluster.link.rate)} would carry {line_rate:,.0f}."
        if rate < line_rate * 0.999
        else ": no faster switch would speed up dense sums of float32."
    )
    yield from _interfaces(question, network)
    if needed > 1:
        yield (
            f"{needed} switches side by side are no limit: each sums 1/{needed} of the blocks. "
            + (
                "Each rank then has a link to each of them."
                if cluster.trunk is None
                else "They are on as many machines."
            )
            + (f" A job can have {MOST_SIDE_BY_SIDE}." if needed > MOST_SIDE_BY_SIDE else "")
        )
    share = ring.time.share
    yield (
        f"With the ring and no overlap, {share:.0%} of a step is communication, so by Amdahl's law "
        f"no faster sum makes it more than {amdahl(share, math.inf):,.3g} times as fast."
    )
    if len(question.step.buckets) == 1:
        yield (
            "All gradients fit one bucket, which is ready when backward ends: no sum overlaps with "
            "backward, so both steps are equal. A smaller bucket (--bucket, and bucket_cap_mb of "
            "DistributedDataParallel) makes sums overlap."
        )
    if best is ring:
        yield (
            "With this hardware, no way to sum whole float32 gradients is faster than the ring. "
            "The first line says what limits the switch."
        )
    else:
        yield (
            f"With {best.name}, a step is {ring.time.after / best.time.after:.2f} times as fast as "
            f"with the ring, and {best.faster:.2f} times if sums overlap with backward."
        )
    if fastest is not best:
        yield (
            f"With more hardware, a step is {fastest.faster:.2f} times as fast as with the ring: "
            f"{fastest.name}."
            + (
                " A ring over as many links is faster, too."
                if "links per rank" in fastest.name
                else ""
            )
        )
    for option in dict.fromkeys((ring, best)):
        hides = _hiding(option.hides, question.step.batch)
        name = option.name[0].upper() + option.name[1:]
        yield f"{name}: sums hide behind computing {hides}."
    yield (
        f"The round trip without queues is {in_words(sizes.round_trip)}, so {sizes.window} frames "
        f"in flight fill the bottleneck. A job should have {sizes.slots} slots: the power of two "
        "above twice that, within 32 and 1,024 (SwitchML's rule, with room for late ranks)."
    )
    if not sizes.enough:
        yield (
            f"{sizes.window} frames are more than the 1,024 slots that a job can have: the link "
            "cannot be filled over such a delay."
        )
    if any("int" in one.name for one in options):
        yield (
            "int16, int8 and int4 lanes keep 16, 8 or 4 bits of a number, less those that the sum "
            "needs, and round at random (docs/lanes.md). So they are never counted as best."
        )
    if cluster.ranks > LARGEST_FANOUT:
        yield (
            f"A switch has {LARGEST_FANOUT} children at most, so {cluster.ranks:,} ranks need a "
            f"tree: {' by '.join(map(str, network.fanouts))}, from the leaves up."
        )


def _interfaces(question: Question, network: PlannedNetwork) -> Iterator[str]:
    """What the interface of the switch's host has to carry, where ranks share it."""
    cluster, step = question.cluster, question.step
    children = max(network.fanouts)
    who = "ranks" if children == cluster.ranks else "children"
    one_for_all = f"one interface for all {children} {who}"
    enough = rate_in_words(children * cluster.link.rate)
    if cluster.trunk is not None:
        if cluster.trunk.rate < children * cluster.link.rate:
            yield (
                f"The switch's host has {one_for_all}, of {rate_in_words(cluster.trunk.rate)}. It "
                f"is no limit from {enough} on."
            )
        return
    if cluster.switch in _WITHOUT_HOST_LINKS:
        return
    shared = replace(cluster, trunk=cluster.link)
    on = shared.star() if children == cluster.ranks else shared.tree()
    ring = step_time(step, lambda n: by_ring(shared, PlannedTensor(n)).seconds).overlapped
    found = []
    for precision in ("int32", "int8"):
        if cluster.ranks <= largest_world_size(PRECISIONS[precision]):

            def seconds(numbers: int, precision: str = precision) -> float:
                return by_switches(shared, PlannedTensor(numbers, precision), on).seconds

            time = step_time(step, seconds)
            name = "float32" if precision == "int32" else precision
            found.append(f"{ring / time.overlapped:.2f} ({name})")
    yield (
        f"Each rank has a link of its own to the switch. If its host has {one_for_all} instead, "
        f"that needs {enough}. With {rate_in_words(cluster.link.rate)} (--one-interface), a step "
        f"with one switch runs at {' and '.join(found)} times the ring's speed."
    )


def _hiding(factor: float, batch: int) -> str:
    if math.isinf(factor):
        return "at no batch size"
    if batch:
        least = max(1, math.ceil(factor * batch))
        return f"if a batch has {least:,} samples per rank or more (now {batch:,})"
    if factor <= 1:
        return f"already; {factor:.2g} times the present batch would suffice"
    return f"from {factor:,.{0 if factor >= 10 else 1}f} times the present batch on"
