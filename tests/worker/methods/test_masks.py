# SPDX-License-Identifier: Apache-2.0
"""Masks: sums are exact, and what one rank sends is uniform bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import p4reduce
import pytest
from one_process import OneProcess
from p4reduce.methods.in_process import InProcess, outcomes_of, run
from p4reduce.methods.masks import GROUP_14, Masks
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire import format as wire
from p4reduce.wire.calls import Operation
from scipy.stats import chi2
from worker_system import System


def test_the_group_is_that_of_rfc_3526() -> None:
    """From its formula; π by Machin's."""
    one = 1 << 2100

    def arctan(inverse: int) -> int:
        term, total, place = one // inverse, 0, 0
        while term:
            total += (-1) ** place * (term // (2 * place + 1))
            term //= inverse * inverse
            place += 1
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    assert 2**2048 - 2**1984 - 1 + 2**64 * ((pi >> (2100 - 1918)) + 124476) == GROUP_14


@pytest.mark.parametrize("ranks", [2, 5])
def test_sums_are_exact(rng: np.random.Generator, ranks: int) -> None:
    numbers = rng.integers(-(2**31) // ranks, 2**31 // ranks, (3, ranks, 300)).astype(np.int32)

    def work(comm: InProcess) -> list[Any]:
        masks = Masks(comm)
        return [masks.sum_integers(some[comm.rank], "numbers") for some in numbers]

    for sums in run(ranks, work):
        for some, total in zip(numbers, sums, strict=True):
            assert np.array_equal(total, some.sum(axis=0))


def test_sums_over_the_switch(system: System, rng: np.random.Generator) -> None:
    numbers = rng.integers(-(2**29), 2**29, (4, 700)).astype(np.int32)
    floats = rng.standard_normal((4, 50))

    def work(comm: p4reduce.Communicator) -> None:
        masks = Masks(comm)
        total = masks.sum_integers(numbers[comm.rank], "integers")
        assert np.array_equal(total, numbers.sum(axis=0))
        near = masks.sum(floats[comm.rank], 8.0, "floats")
        np.testing.assert_allclose(near, floats.sum(axis=0), atol=4 / 2 * 4 * 8 / 2**31)

    system.run(4, work)


def is_uniform(data: bytes) -> bool:
    """Pearson's test of a byte's 256 values, and of 12 neighbouring bits', at 1 in a million."""
    for found, values in (
        (np.frombuffer(data, np.uint8), 1 << 8),
        (np.frombuffer(data, ">u2") >> 2 & 0xFFF, 1 << 12),
    ):
        counts = np.bincount(found, minlength=values)
        wanted = len(found) / values
        assert wanted >= 5
        statistic = float(((counts - wanted) ** 2 / wanted).sum())
        if not 1e-6 < chi2.sf(statistic, values - 1) < 1 - 1e-6:
            return False
    return True


class Recorded:
    """A communicator that keeps what this rank gave to be summed in lanes that wrap."""

    def __init__(self, comm: InProcess) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.given: list[Any] = []

    def allreduce(
        self, array: Any, *, name: str | None = None, precision: str | None = None
    ) -> Any:
        if precision is not None:
            self.given.append(array)
        return self._comm.allreduce(array, name=name, precision=precision)


def frames(world: OneProcess, given: list[list[Any]]) -> Iterator[bytes]:
    """The payloads that rank 0 sends when ranks sum these arrays, through the real P4 program."""
    for number, arrays in enumerate(zip(*given, strict=True)):
        for rank, array in enumerate(arrays):
            plan = plans.allreduce(
                array, Operation.SUM, None, None, "wrap32", world_size=len(arrays)
            )
            world.machines[rank].submit(
                Collective(
                    plan.call,
                    plan.source,
                    plan.target,
                    sequence=number,
                    slots=world.slots,
                    timeout=60.0,
                    lane_format=plan.lane_format,
                )
            )
        machine = world.machines[0]
        while True:
            rows = [int(row) for row in machine.take_sendable()]
            for row in rows:
                frame = machine.outgoing.get(row)
                if len(frame) == wire.PAYLOAD_FRAME_BYTES:
                    yield bytes(frame[wire.PAYLOAD_OFFSET :])
            machine.sent(np.array(rows, np.int64), 0.0)
            world.fly((1, machine.outgoing.get(row)) for row in rows)
            if not world.step() and not rows:
                break


@pytest.mark.parametrize("number", [0, 1])
def test_one_ranks_frames_are_uniform_bytes(rng: np.random.Generator, number: int) -> None:
    """Whatever it hides: a constant, the least random input there is."""
    ranks, lanes = 3, 100 * 256

    def work(comm: InProcess) -> list[Any]:
        recorded = Recorded(comm)
        masks = Masks(recorded)  # type: ignore[arg-type]
        for _ in range(2):
            masks.sum_integers(np.full(lanes, number, np.int32), "constant")
        return recorded.given

    given = run(ranks, work)
    sent = b"".join(frames(OneProcess(ranks, 16, rng), given))
    assert len(sent) == 2 * 4 * lanes
    assert is_uniform(sent)
    assert not is_uniform(np.full(len(sent) // 4, number, ">i4").tobytes())


def test_no_two_sums_have_the_same_masks() -> None:
    def work(comm: InProcess) -> list[Any]:
        recorded = Recorded(comm)
        masks = Masks(recorded)  # type: ignore[arg-type]
        for _ in range(2):
            masks.sum_integers(np.zeros(256, np.int32), "zeros")
        return recorded.given

    for first, second in run(2, work):
        assert (first != second).mean() > 0.9


def test_one_rank_has_nobody_to_hide_among() -> None:
    (error,) = outcomes_of(1, Masks)
    assert "at least two ranks are needed" in str(error)
