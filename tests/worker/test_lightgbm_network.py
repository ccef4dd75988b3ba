# SPDX-License-Identifier: Apache-2.0
"""LightGBM's collective functions over a switch, called as LightGBM calls them, without it.

tests/engines/trees_of_lightgbm has LightGBM itself.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.lightgbm import network
from p4reduce.lightgbm.packed import packed_word
from p4reduce.lightgbm.served import LightGBMNetwork
from p4reduce.lightgbm.signals import WaitingSignals
from worker_system import System

SIZES = ctypes.POINTER(ctypes.c_int32)
REDUCER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
Operation = Callable[[Any, Any], Any]


def memory(address: int, size: int, dtype: Any) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype)


def reduce_by(operation: Operation, dtype: Any, calls: list[int]) -> Any:
    """A reducer of LightGBM's kind, which counts its calls by the bytes that they have."""

    def reduce(source: int, target: int, _item: int, size: int) -> None:
        calls.append(size)
        sums = memory(target, size, dtype)
        sums[:] = operation(sums, memory(source, size, dtype))

    return REDUCER(reduce)


def sums_of_halves(dtype: Any) -> Operation:
    return lambda one, other: (one.view(dtype) + other.view(dtype)).view(one.dtype)


class Library:
    """Counts what it is told, in place of LightGBM."""

    def __init__(self) -> None:
        self.freed = 0

    def LGBM_NetworkFree(self) -> int:  # noqa: N802
        self.freed += 1
        return 0


def served_by(comm: p4reduce.Communicator, library: Library | None = None) -> LightGBMNetwork:
    return LightGBMNetwork(comm, None, library or Library(), WaitingSignals([]))


def sizes(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(numbers))(*numbers)


def reduce_scatter(
    served: LightGBMNetwork, mine: Any, lengths: Sequence[int], rank: int, item: int, reducer: Any
) -> Any:
    """Call the function with blocks of these lengths in bytes; return what it wrote."""
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    output = np.full(mine.nbytes, 7, np.uint8)  # LightGBM has room for more than its block
    reference = ctypes.c_void_p(ctypes.cast(reducer, ctypes.c_void_p).value)
    places, blocks = (ctypes.cast(sizes(one), SIZES) for one in (starts, lengths))
    served.reduce_scatter(
        mine.ctypes.data, mine.nbytes, item, places, blocks, len(lengths), output.ctypes.data,
        output.nbytes, ctypes.addressof(reference),
    )  # fmt: skip
    assert (output[lengths[rank] :] == 7).all()
    return output[: lengths[rank]].view(mine.dtype)


def allgather(served: LightGBMNetwork, mine: Any, lengths: Sequence[int], output: Any) -> None:
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    places, blocks = (ctypes.cast(sizes(one), SIZES) for one in (starts, lengths))
    served.allgather(
        mine.ctypes.data, mine.nbytes, places, blocks, len(lengths), output.ctypes.data,
        output.nbytes,
    )  # fmt: skip


@pytest.mark.parametrize("word", [np.int32, np.int64])
@pytest.mark.parametrize("beyond", [False, True], ids=["within lanes", "beyond lanes"])
def test_histograms_of_integers(
    system: System, rng: np.random.Generator, word: Any, beyond: bool
) -> None:
    """The switch adds them; where it finds a sum too large for a lane, all ranks do."""
    bits = np.iinfo(word).bits
    ranks, counts = 4, [300, 0, 517, 41]
    half = 1 << bits // 2
    size = (ranks, sum(counts))
    highs = rng.integers(-half // 16, half // 16, size).astype(np.int64)
    lows = rng.integers(0, half // 16, size).astype(np.int64)
    if beyond:
        highs[:, 5] = half // 2 - 1  # of rank 0's part alone
    words = (highs * half + lows).astype(word)
    with np.errstate(over="ignore"):
        wanted = np.split(words.sum(axis=0, dtype=word), np.cumsum(counts)[:-1])
    lengths = [count * bits // 8 for count in counts]

    def work(comm: p4reduce.Communicator) -> tuple[Any, list[int]]:
        calls: list[int] = []
        reducer = reduce_by(np.add, word, calls)
        served = served_by(comm)
        sums = reduce_scatter(served, words[comm.rank], lengths, comm.rank, bits // 16, reducer)
        assert served.failure is None
        return sums, calls[1:]  # the first one tries what it does

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = system.run(ranks, work)
    wide = [str(one.message) for one in said if "use_quantized_grad=False" in str(one.message)]
    assert bool(wide) == (word == np.int64)
    for rank, (sums, calls) in enumerate(results):
        np.testing.assert_array_equal(sums, wanted[rank])
        assert calls == ([lengths[rank]] * (ranks - 1) if beyond else [])


@pytest.mark.parametrize(
    ("operation", "dtype", "item"),
    [
        (np.maximum, np.int32, 4),
        (np.add, np.int32, 4),  # a sum of halves, which may not carry
        (np.add, np.float64, 8),
        (lambda one, _other: one, np.float32, 4),
    ],
    ids=["maximum", "int32", "floats", "first"],
)
def test_other_reducers_in_the_order_of_ranks(
    system: System, rng: np.random.Generator, operation: Operation, dtype: Any, item: int
) -> None:
    numbers = (rng.standard_normal((3, 40)) * 1e6).astype(dtype)
    lengths = [10 * item, 24 * item, 6 * item]

    def work(comm: p4reduce.Communicator) -> Any:
        reducer = reduce_by(operation, dtype, [])
        return reduce_scatter(
            served_by(comm), numbers[comm.rank], lengths, comm.rank, item, reducer
        )

    whole = operation(operation(numbers[0], numbers[1]), numbers[2])
    np.testing.assert_array_equal(np.concatenate(system.run(3, work)), whole)


@pytest.mark.parametrize("half", [2, 4])
def test_what_a_histograms_reducer_is_not(half: int) -> None:
    word, lane = {2: (np.int32, np.int16), 4: (np.int64, np.int32)}[half]
    assert packed_word(reduce_by(np.add, word, []), half) is word
    others: list[Operation] = [
        np.maximum,
        np.minimum,
        sums_of_halves(lane),
        sums_of_halves({2: np.float16, 4: np.float32}[half]),
        lambda one, _other: one,
        lambda _one, other: other,
    ]
    with np.errstate(all="ignore"):
        assert [packed_word(reduce_by(one, word, []), half) for one in others] == [None] * 6
    assert packed_word(reduce_by(np.add, np.float64, []), 8) is None


def test_data_of_different_lengths_also_in_place(system: System) -> None:
    lengths = [3, 0, 8]
    wanted = b"one" + b"thirteen"

    def work(comm: p4reduce.Communicator) -> bytes:
        own = np.frombuffer([b"one", b"", b"thirteen"][comm.rank], np.uint8)
        output = np.zeros(11, np.uint8)
        output[: len(own)] = own  # as `Network::Allreduce` has it after a reduce-scatter
        allgather(served_by(comm), output[: len(own)], lengths, output)
        return output.tobytes()

    assert system.run(3, work) == [wanted] * 3


def test_a_failure_is_kept_and_leaves_data_that_can_be_read(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        library = Library()
        served = served_by(comm, library)
        lengths = np.array([6, 6], np.int32)
        sizes_of_all = np.zeros(2, np.int32)
        allgather(served, lengths[:1], [4, 4], sizes_of_all)  # each rank will send six bytes
        assert sizes_of_all.tolist() == [6, 6]
        comm.close()
        bins, output = np.arange(6, dtype=np.uint8), np.zeros(12, np.uint8)
        allgather(served, bins, [6, 6], output)
        assert isinstance(served.failure, p4reduce.ClosedError)
        assert library.freed == 1
        assert (output == 0xFF).all()
        numbers = np.arange(4.0)
        own = reduce_scatter(
            served_by(comm), numbers, [8, 24], comm.rank, 8, reduce_by(np.add, float, [])
        )
        assert own.tolist() == [[0.0], [1.0, 2.0, 3.0]][comm.rank]
        twice = np.zeros(8)
        allgather(served_by(comm), numbers, [32, 32], twice)
        assert twice.tolist() == [0, 1, 2, 3] * 2

    system.run(2, work)


def test_handlers_of_signals_wait_while_a_callback_runs() -> None:
    happened: list[str] = []

    def callback(signals: WaitingSignals) -> None:
        signal.raise_signal(signal.SIGUSR1)
        happened.append("begins")
        with signals.at_once():
            happened.append("at once")
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        happened.append("ends")

    def handler(_number: int, _frame: Any) -> None:
        happened.append("signal")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signals = WaitingSignals([callback.__code__])
        with signals:
            with signals:
                signal.raise_signal(signal.SIGUSR1)
                callback(signals)
            happened.append("inner over")
        happened.append("over")
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert happened == [
        "signal", "begins", "signal", "at once", "signal", "ends", "inner over", "signal", "over",
    ]  # fmt: skip


def test_what_network_refuses(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"comm=3: a communicator is needed"), network(3):  # type: ignore[arg-type]
        pass
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setitem(sys.modules, "lightgbm.basic", None)

    def work(comm: p4reduce.Communicator) -> None:
        with pytest.raises(ValueError, match="timeout"), network(comm, timeout=-1):
            pass
        with pytest.raises(ImportError, match="pip install lightgbm"), network(comm):
            pass

    system.run(1, work)
