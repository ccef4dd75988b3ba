# SPDX-License-Identifier: Apache-2.0
"""Sums that do not wait for ranks that are late, over a switch: who is in, and what the rest do."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import p4reduce
import pytest
from late_ranks import wait_until_behind, wait_until_there
from p4reduce.late import PartialSum, PartialSums
from p4reduce.late.sums import Parent
from worker_system import DEADLINE, System, at_once, outcome

EMBEDDED = pytest.mark.parametrize("system", ["embedded"], indirect=True)
WORLD = 4
LATE = 3
SOON = 0.0  # a deadline: whoever is there is in


def sums_of(comm: Parent, history: int = 16) -> PartialSums:
    return PartialSums(comm, history=history, timeout=DEADLINE)


def alike(results: list[PartialSum]) -> PartialSum:
    """What all ranks have got, but for `included`."""
    for rank, one in enumerate(results):
        assert (one.members, one.missing) == (results[0].members, results[0].missing)
        assert one.number == results[0].number
        assert one.result.tobytes() == results[0].result.tobytes()
        assert one.included == (rank in one.members)
    return results[0]


def test_who_is_in_time_is_summed_exactly(system: System, rng: np.random.Generator) -> None:
    """Nobody is late; one is; and then nobody again. Integers, and floats in narrow lanes."""
    integers = rng.integers(-1000, 1000, (WORLD, 30, 50), np.int32)
    floats = rng.standard_normal((WORLD, 5000)).astype(np.float32)

    def work(comm: p4reduce.Communicator) -> list[PartialSum]:
        own, mine = integers[comm.rank], floats[comm.rank]
        results = []
        with sums_of(comm) as sums:
            results.append(sums.allreduce(own))
            if comm.rank == LATE:
                wait_until_behind(sums, 2)
            results.append(sums.allreduce(own, deadline=SOON, at_least=WORLD - 1))
            results.append(
                sums.allreduce(mine, "mean", deadline=SOON, at_least=3, precision="int16")
            )
            comm.barrier()
            results.append(sums.allreduce(mine, "mean"))
        return results

    first, second, third, last = (
        alike(list(of_all)) for of_all in zip(*system.run(WORLD, work), strict=True)
    )
    assert (first.members, first.missing) == ((0, 1, 2, 3), ())
    assert np.array_equal(first.result, integers.sum(0))
    assert (second.members, second.missing) == ((0, 1, 2), (LATE,))
    assert np.array_equal(second.result, integers[:LATE].sum(0))
    assert third.members == (0, 1, 2)
    bound = p4reduce.error_bound(np.abs(floats).max(), WORLD, "int16") / LATE + 1e-6
    assert np.abs(third.result - floats[:LATE].mean(0)).max() <= bound
    assert last.members == (0, 1, 2, 3)
    assert np.allclose(last.result, floats.mean(0), atol=1e-6)


def test_a_communicator_does_so_by_itself(system: System) -> None:
    """`allreduce(deadline=)`, and what was left out is in the next one by `feedback`."""

    def work(comm: p4reduce.Communicator) -> list[Any]:
        array = np.full(700, 10**comm.rank, np.float32)
        sums = comm.partial_sums()
        assert comm.partial_sums() is sums
        if comm.rank == LATE:
            wait_until_behind(sums)
        results = [comm.allreduce(array, deadline=SOON, at_least=3, feedback=True)]
        comm.barrier()
        assert sums.behind == 0
        results += [comm.allreduce(array, deadline=DEADLINE, at_least=3, feedback=True)]
        results += [comm.allreduce(array, "mean", deadline=DEADLINE, at_least=3)]
        assert comm.allreduce(np.ones(3, np.int32)).tolist() == [WORLD] * 3  # as ever
        return results

    first, second, third = (
        alike(list(of_all)) for of_all in zip(*system.run(WORLD, work), strict=True)
    )
    assert (first.result == 111).all()
    assert first.missing == (LATE,)
    assert (second.result == 2111).all()
    assert (third.result == 1111 / 4).all()


@EMBEDDED
def test_an_overflow_keeps_what_was_left_out(system: System) -> None:
    options: Any = {"at_least": 1, "feedback": True}

    def work(comm: p4reduce.Communicator) -> tuple[Any, PartialSum]:
        with sums_of(comm) as sums:
            if comm.rank:
                wait_until_behind(sums)
            sums.allreduce(np.full(5, 50, np.int8), deadline=SOON, **options)
            comm.barrier()
            options["deadline"] = DEADLINE
            high = np.full(5, 0 if comm.rank else 100, np.int8)
            error = outcome(lambda: sums.allreduce(high, **options))
            return error, sums.allreduce(np.full(5, 10, np.int8), **options)

    errors, totals = zip(*system.run(2, work), strict=True)
    assert all(isinstance(error, p4reduce.LaneOverflowError) for error in errors)
    assert alike(list(totals)).result.tolist() == [10 + 10 + 50] * 5


@EMBEDDED
@pytest.mark.parametrize(
    ("dtype", "precision", "number", "error"),
    [
        (np.int8, None, 64, "element 0 is 64, and 128 with the 64 that earlier sums left out"),
        (np.int32, None, -(2**31), "int32 holds -2147483648 to 2147483647"),
        (np.int8, "int4", -4, "precision='int4' holds numbers from -7 to 7"),
        (np.int32, "wrap32", 2**30, None),
    ],
)
def test_what_was_left_out_never_wraps_silently(
    system: System, dtype: type, precision: str | None, number: int, error: str | None
) -> None:
    """The rank that was late is told before it begins, and continues without feedback."""
    options: Any = {"deadline": SOON, "at_least": 1, "precision": precision}

    def work(comm: p4reduce.Communicator) -> PartialSum:
        own = np.full(5, number if comm.rank else 0, dtype)
        with sums_of(comm) as sums:
            if comm.rank:
                wait_until_behind(sums)
            sums.allreduce(own, feedback=True, **options)
            comm.barrier()
            options["deadline"] = DEADLINE
            if comm.rank and error is not None:
                with pytest.raises(p4reduce.ValueRangeError, match=error):
                    sums.allreduce(own, feedback=True, **options)
            return sums.allreduce(own, feedback=comm.rank > 0 and error is None, **options)

    total = alike(system.run(2, work))
    wrapped = 2 * number - 2**32 if error is None and 2 * number > 2**31 - 1 else 2 * number
    assert total.members == (0, 1)
    assert (total.result == (wrapped if error is None else number)).all()


@EMBEDDED
def test_fewer_than_at_least_are_not_enough(system: System) -> None:
    """Two of four wait though the deadline is over; with the third they are enough."""

    def work(comm: p4reduce.Communicator) -> PartialSum:
        with sums_of(comm) as sums:
            if comm.rank == 2:
                wait_until_there(sums, 2)
                assert sums.behind == 0
            if comm.rank == LATE:
                wait_until_behind(sums)
            return sums.allreduce(np.full(3, comm.rank + 1, np.int8), deadline=SOON, at_least=3)

    total = alike(system.run(WORLD, work))
    assert total.members == (0, 1, 2)
    assert total.result.tolist() == [6, 6, 6]


@EMBEDDED
def test_a_rank_catches_up_and_the_others_wait_for_it_before_it_is_too_late(system: System) -> None:
    """With `history` of 2 the third sum that a rank misses waits for it."""

    missed_by_it = 8

    def work(comm: p4reduce.Communicator) -> list[int]:
        seen = []
        with sums_of(comm, history=2) as sums:
            while comm.rank == LATE and sum(seen) < missed_by_it:
                wait_until_behind(sums)
                assert sums.behind <= 2
                missed = sums.catch_up()
                assert all(one.missing == (LATE,) for one in missed)
                assert all(one.result.tolist() == [3.0, 3.0] for one in missed)
                seen.append(len(missed))
            for _ in range(0 if comm.rank == LATE else missed_by_it):
                sums.allreduce(np.ones(2, np.float32), deadline=SOON, at_least=3)
        return seen

    assert sum(system.run(WORLD, work)[LATE]) == missed_by_it


@EMBEDDED
def test_different_sums_are_a_mismatch_on_all_ranks(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        with sums_of(comm) as sums:
            size = 5 if comm.rank == 1 else 4
            return outcome(lambda: sums.allreduce(np.ones(size, np.float32)))

    for error in system.run(WORLD, work):
        assert isinstance(error, p4reduce.MismatchError)
        # If rank 1 and one other have called, either may be the one that calls something else.
        assert error.ranks == (1,) or "another one than rank 1;" in str(error)
        assert "dtype, shape, op" in str(error)


@EMBEDDED
def test_who_is_late_and_calls_something_else_hears_of_it(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        with sums_of(comm) as sums:
            if comm.rank == LATE:
                wait_until_behind(sums)
            size = 5 if comm.rank == LATE else 4
            result = outcome(
                lambda: sums.allreduce(np.ones(size, np.float32), deadline=SOON, at_least=3)
            )
            comm.barrier()
            return result

    *others, late = system.run(WORLD, work)
    assert (alike(others).result == 3).all()
    assert isinstance(late, p4reduce.MismatchError)
    assert late.ranks == (LATE,)


@EMBEDDED
def test_an_overflow_breaks_nothing(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        with sums_of(comm) as sums:
            high = outcome(lambda: sums.allreduce(np.full(9, 100, np.int8)))
            return high, sums.allreduce(np.full(9, 10, np.int8)).result.tolist()

    for high, low in system.run(WORLD, work):
        assert isinstance(high, p4reduce.LaneOverflowError)
        assert low == [40] * 9


@EMBEDDED
def test_an_overflow_among_missed_sums_loses_none_of_them(system: System) -> None:
    """Two behind it are as they were; it raises on this rank too, in its place."""

    def work(comm: p4reduce.Communicator) -> Any:
        with sums_of(comm) as sums:
            if comm.rank == LATE:
                while sums.behind < 3:
                    time.sleep(0.01)
                return [outcome(sums.catch_up) for _ in range(3)]
            for number in (10, 100, 20):
                outcome(
                    lambda number=number: sums.allreduce(  # type: ignore[misc]
                        np.full(9, number, np.int8), deadline=SOON, at_least=3
                    )
                )
        return None

    first, error, last = system.run(WORLD, work)[LATE]
    assert [one.result.tolist() for one in first] == [[30] * 9]
    assert isinstance(error, p4reduce.LaneOverflowError)
    assert [one.result.tolist() for one in last] == [[60] * 9]


@EMBEDDED
def test_who_closes_early_is_named(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        sums = sums_of(comm)
        if comm.rank == 1:
            sums.close()
            return outcome(lambda: sums.allreduce(np.ones(2, np.float32)))
        result = outcome(lambda: sums.allreduce(np.ones(2, np.float32), deadline=SOON, at_least=4))
        sums.close()
        return result

    errors = system.run(WORLD, work)
    assert isinstance(errors.pop(1), p4reduce.ClosedError)
    for error in errors:
        assert isinstance(error, p4reduce.WorkerLostError), error
        assert error.ranks == (1,)


@EMBEDDED
def test_those_who_are_left_go_on_and_know_it(system: System) -> None:
    """A rank is gone: with enough left the sums continue, and without they are an error."""

    def work(comm: p4reduce.Communicator) -> Any:
        with sums_of(comm) as sums:
            one = np.full(100, 2**comm.rank, np.int32)
            sums.allreduce(one)
            if comm.rank == 1:
                sums.abandon()
                comm.barrier()
                return None
            results = [sums.allreduce(one, deadline=DEADLINE, at_least=3) for _ in range(3)]
            assert sums.lost == (1,)
            assert sums.lost == results[0].missing
            comm.barrier()
            return results, outcome(lambda: sums.allreduce(one, at_least=4, deadline=SOON))

    ranks = system.run(WORLD, work)
    del ranks[1]
    for results, error in ranks:
        for total in results:
            assert total.members == (0, 2, 3)
            assert (total.result == 13).all()
        assert isinstance(error, p4reduce.WorkerLostError)
        assert "3 of 4 are left: rank 1 is gone" in str(error)


class _Forgets:
    """A communicator whose sum number 1 this rank does not get, as if the loss came before it."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def allreduce(self, array: Any, *, name: str, out: Any, precision: Any) -> Any:
        total = self._comm.allreduce(array, name=name, out=out, precision=precision)
        if name.startswith("sum 1 of"):
            total.fill(-1)
            raise p4reduce.WorkerLostError("rank 3 was lost", ranks=(3,))
        return total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


class _Leaves(_Forgets):
    """One that is gone when it has given its part of that sum."""

    def allreduce(self, array: Any, *, name: str, out: Any, precision: Any) -> Any:
        total = self._comm.allreduce(array, name=name, out=out, precision=precision)
        if name.startswith("sum 1 of"):
            self._comm.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            raise p4reduce.ClosedError("gone")
        return total


class _Parent:
    """A communicator from which the sums get one of these."""

    def __init__(self, comm: p4reduce.Communicator) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def dup(self, *, timeout: float | None = None, slots: int | None = None) -> Any:
        comm = self._comm.dup(timeout=timeout, slots=slots)
        return _Leaves(comm) if comm.rank == 3 else _Forgets(comm)


@EMBEDDED
def test_a_sum_that_only_some_have_is_handed_on(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> Any:
        sums = sums_of(comm if comm.rank == 1 else _Parent(comm))
        own = np.full((2, 3), 3**comm.rank, np.int16)
        sums.allreduce(own)
        comm.barrier()
        results = [outcome(lambda: sums.allreduce(own)) for _ in range(2)]
        if comm.rank != 3:
            sums.close()
        return results

    *ranks, gone = system.run(WORLD, work)
    assert isinstance(gone[0], p4reduce.ClosedError)
    second, third = (alike(list(of_all)) for of_all in zip(*ranks, strict=True))
    assert second.members == (0, 1, 2, 3)
    assert (second.result == 40).all()
    assert third.members == (0, 1, 2)
    assert (third.result == 13).all()


@EMBEDDED
def test_wrong_arguments_of_the_first_call_break_nothing(system: System) -> None:
    """That call has made a `dup` of all ranks before they show."""

    def work(comm: p4reduce.Communicator) -> list[Any]:
        ones = np.ones(3, np.float32)
        if comm.rank == 0:
            with pytest.raises(ValueError, match="at_least=3: 1 to 2 are possible"):
                comm.allreduce(ones, deadline=DEADLINE, at_least=3)
        partial = comm.allreduce(ones, deadline=DEADLINE, at_least=2)
        return [partial.result.tolist(), comm.allreduce(ones).tolist()]

    assert system.run(2, work) == [[[2.0] * 3] * 2] * 2


@EMBEDDED
def test_what_was_left_out_is_as_it_was_then(system: System) -> None:
    """The caller may change his memory between two calls, which need not be a numpy array's."""

    class Tensor:
        def __init__(self) -> None:
            self.numbers = np.full(5, 3, np.float32)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.numbers

    def work(comm: p4reduce.Communicator) -> PartialSum:
        tensor: Any = Tensor()
        with sums_of(comm) as sums:
            if comm.rank:
                wait_until_behind(sums)
            sums.allreduce(tensor, deadline=SOON, feedback=True, out=tensor.numbers)
            comm.barrier()
            tensor.numbers[:] = 0
            return sums.allreduce(tensor, deadline=DEADLINE, at_least=2, feedback=True)

    total = alike(system.run(2, work))
    assert total.members == (0, 1)
    assert (total.result == 3).all()


@EMBEDDED
def test_calls_of_several_threads_come_one_after_the_other(system: System) -> None:
    calls = range(6)

    def work(comm: p4reduce.Communicator) -> list[PartialSum]:
        with sums_of(comm) as sums:

            def call(number: int) -> PartialSum:
                return sums.allreduce(np.full(3, number, np.int32), deadline=DEADLINE)

            totals = at_once([lambda number=number: call(number) for number in calls])
        return sorted(totals, key=lambda total: total.number)

    results = system.run(2, work)
    totals = [alike(list(of_all)) for of_all in zip(*results, strict=True)]
    assert [total.number for total in totals] == list(calls)
    assert sum(int(total.result[0]) for total in totals) == 2 * sum(calls)


@EMBEDDED
def test_a_mean_of_float16_is_finite_where_its_sum_is_not(system: System) -> None:
    large = np.full(5, 40_000, np.float16)

    def work(comm: p4reduce.Communicator) -> tuple[PartialSum, list[PartialSum], Any]:
        with sums_of(comm) as sums:
            mean = sums.allreduce(large, "mean", deadline=DEADLINE)
            infinite = sums.allreduce(large, deadline=DEADLINE)
            assert infinite.result.dtype == np.float16
            assert np.isposinf(infinite.result).all()
            if comm.rank:
                wait_until_behind(sums)
                return mean, sums.catch_up(), None
            return mean, [], sums.allreduce(large, "mean", deadline=SOON)

    (mean, _, last), (_, (caught,), _) = system.run(2, work)
    assert mean.result.tobytes() == last.result.tobytes() == large.tobytes()
    assert caught.result.dtype == np.float32
    assert (caught.result / len(caught.members) == large).all()


@EMBEDDED
def test_random_calls_of_a_job_and_its_groups(system: System, rng: np.random.Generator) -> None:
    """Beside ordinary collectives, and with ranks late at random: exact sums of the members."""
    seeds = rng.integers(1 << 32, size=1 + WORLD)

    def work(comm: p4reduce.Communicator) -> list[PartialSum]:
        shared, own = np.random.default_rng(seeds[0]), np.random.default_rng(seeds[1 + comm.rank])
        group = comm.split(comm.rank % 2)
        assert group is not None
        mates = range(comm.rank % 2, WORLD, 2)
        totals = []
        with group:
            for number in range(20):
                size, dtype = shared.choice([0, 1, 300, 5000]), shared.choice(["i1", "i2", "i4"])
                every = shared.integers(-9, 9, (WORLD, size)).astype(dtype)
                deadline, least = shared.choice([0, 0.01, DEADLINE]), shared.integers(1, WORLD + 1)
                if own.random() < 0.4:
                    time.sleep(own.random() / 50)
                beside = comm.allreduce_async(np.full(100, comm.rank, np.int32))
                total = comm.allreduce(
                    every[comm.rank], name=f"sum {number}", deadline=deadline, at_least=least
                )
                totals.append(total)
                assert len(total.members) >= least
                assert sorted(total.members + total.missing) == list(range(WORLD))
                assert np.array_equal(total.result, every[list(total.members)].sum(0))
                part = group.allreduce(every[comm.rank], deadline=deadline)
                members = [mates[member] for member in part.members]
                assert np.array_equal(part.result, every[members].sum(0))
                assert (beside.wait() == 6).all()
        return totals

    for of_all in zip(*system.run(WORLD, work), strict=True):
        alike(list(of_all))


def test_bad_arguments_begin_nothing(alone: p4reduce.Communicator) -> None:
    ones = np.ones(3, np.float32)
    with PartialSums(alone, timeout=DEADLINE) as sums:
        for wrong, kind, words in (
            ({"at_least": 2}, ValueError, "at_least=2: 1 to 1 are possible"),
            ({"deadline": -1.0}, ValueError, "seconds from 0 on"),
            ({"deadline": "soon"}, TypeError, "deadline='soon'"),
            ({"deadline": np.ones(2)}, TypeError, "a number of seconds is needed"),
            ({"deadline": 1e9}, ValueError, "2,147 at most, or infinity"),
            ({"feedback": 1}, TypeError, "feedback=1"),
            ({"op": "most"}, ValueError, "op='most'"),
            ({"precision": "int5"}, ValueError, "int5"),
            ({"out": np.ones(4, np.float32)}, ValueError, r"out has shape \(4,\)"),
            ({"timeout": 0}, ValueError, "timeout=0"),
        ):
            with pytest.raises(kind, match=words):
                sums.allreduce(ones, **wrong)
        with pytest.raises(p4reduce.ValueRangeError, match=r"2\^128"):
            sums.allreduce(np.array([1.0, 1e300]))
        with pytest.raises(ValueError, match="a dimension has 2,147,483,647 elements at most"):
            sums.allreduce(np.empty((1 << 40, 0), np.float32))
        assert sums.allreduce(ones).result.tolist() == [1.0] * 3
        assert sums.allreduce(np.array(7, np.int32)).result == 7
    with pytest.raises(ValueError, match="need a deadline"):
        alone.allreduce(ones, feedback=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="not for sums with a deadline"):
        alone.allreduce(ones, deadline=1.0, seed=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="history=0"):
        alone.partial_sums(history=0)
    assert alone.partial_sums(history=3).history == 3
    with pytest.raises(ValueError, match="it is 3 already"):
        alone.partial_sums(history=4)
