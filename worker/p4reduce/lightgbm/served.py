# SPDX-License-Identifier: Apache-2.0
"""LightGBM's external collective functions, served by a communicator.

`LGBM_NetworkInitWithFunctions` of LightGBM's C API takes two functions, a reduce-scatter and an
all-gather of bytes, and uses them in place of its sockets (`src/network/network.cpp`). The types of
the functions are in its `include/LightGBM/meta.h`.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.communicator import Communicator
from p4reduce.errors import LaneOverflowError
from p4reduce.lightgbm.packed import Reduce, packed_word, sum_words
from p4reduce.lightgbm.signals import WaitingSignals

Bytes = npt.NDArray[np.uint8]

# `SerialTreeLearner::ComputeBestSplitForFeature` takes the width of a histogram's words from this
# rank's samples of a leaf (`GetHistBitsInLeaf<false>`), where it is that of all ranks' samples.
_WIDE = (
    "LightGBM up to 4.7.0 grows wrong trees from quantised gradients on several machines, over its "
    "own sockets too, where all samples times num_grad_quant_bins are 65,536 or more: use "
    "use_quantized_grad=False"
)

_SIZES = ctypes.POINTER(ctypes.c_int32)
_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,  # input
    ctypes.c_int32,  # its bytes
    ctypes.c_int,  # bytes per item
    _SIZES,  # where each rank's block begins
    _SIZES,  # bytes of each rank's block
    ctypes.c_int,  # ranks
    ctypes.c_void_p,  # output: this rank's block
    ctypes.c_int32,  # its room
    ctypes.c_void_p,  # a reference to the reducer: the address of its address
)
_ALLGATHER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,  # input: this rank's block
    ctypes.c_int32,  # its bytes
    _SIZES,  # where each rank's block begins in the output
    _SIZES,  # bytes of each rank's block
    ctypes.c_int,  # ranks
    ctypes.c_void_p,  # output
    ctypes.c_int32,  # its bytes
)


class LightGBMNetwork:
    """A communicator as LightGBM's network.

    A callback cannot raise. After a failure it keeps the exception, and takes the network away from
    LightGBM. LightGBM's next collective then raises an error of its own ("Please initialize the
    network interface first"), which ends the training. The failed call itself returns valid data:
    this rank's own in place of all others'.

    Attributes:
        parameters: for LightGBM.
        failure: what a callback could not raise, or None.
        signals: entered around all calls of LightGBM in this thread.
    """

    def __init__(
        self, comm: Communicator, timeout: float | None, library: Any, signals: WaitingSignals
    ) -> None:
        self._comm = comm
        self._timeout = timeout
        self._library = library
        learner = "data" if comm.size > 1 else "serial"
        self.parameters = {
            "num_machines": comm.size,
            "tree_learner": learner,
            "pre_partition": True,
        }
        self.failure: BaseException | None = None
        self.signals = signals
        # LightGBM keeps their addresses: they have to live as long as its network.
        self._functions = _REDUCE_SCATTER(self.reduce_scatter), _ALLGATHER(self.allgather)
        self._words: dict[tuple[int, int], type[np.signedinteger[Any]] | None] = {}
        self._lengths: list[int] = []  # what the last all-gather said, if that was a number each

    def begin(self) -> None:
        """Make this the network of the thread, unless it has failed."""
        self._library.LGBM_NetworkFree()
        if self.failure is None:
            rank, size = self._comm.rank, self._comm.size
            self._library.LGBM_NetworkInitWithFunctions(size, rank, *self._functions)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._library.LGBM_NetworkFree()

    def reduce_scatter(
        self,
        mine: int,
        size: int,
        item: int,
        starts: Any,
        lengths: Any,
        ranks: int,
        output: int,
        _room: int,
        reducer: int,
    ) -> None:
        """Serve LightGBM's `ReduceScatterFunction`."""
        own = _bytes_at(mine, size).copy()  # a call that an exception ends may still read it
        start, length = starts[self._comm.rank], lengths[self._comm.rank]
        try:
            with self.signals.at_once():
                address = ctypes.c_void_p.from_address(reducer).value or 0
                part = self._sums(own, item, starts[:ranks], lengths[:ranks], address)
        except BaseException as error:
            self._fail(error)
            part = own[start : start + length]
        _bytes_at(output, length)[:] = part

    def _sums(
        self, mine: Bytes, item: int, starts: Sequence[int], lengths: Sequence[int], address: int
    ) -> Bytes:
        """Return this rank's block of what a reducer makes of all ranks' data."""
        reduce: Reduce = _REDUCE(address)
        rank, ranks = self._comm.rank, self._comm.size
        key = address, item
        if key not in self._words:
            self._words[key] = packed_word(reduce, item)
            if self._words[key] is np.int64:
                warnings.warn(_WIDE, stacklevel=2)
        word = self._words[key]
        if word is not None:
            counts = [length // (2 * item) for length in lengths]
            try:
                sums = sum_words(self._comm, mine.view(word), counts, self._timeout)
                return np.asarray(sums.view(np.uint8))
            except LaneOverflowError:
                pass  # on all ranks, which continue in step
        everything = self._gather(mine, [len(mine)] * ranks).reshape(ranks, -1)
        blocks = everything[:, starts[rank] : starts[rank] + lengths[rank]].copy()
        for block in blocks[1:]:
            reduce(block.ctypes.data, blocks[0].ctypes.data, item, block.nbytes)
        return np.asarray(blocks[0])

    def allgather(
        self,
        mine: int,
        size: int,
        starts: Any,
        lengths: Any,
        ranks: int,
        output: int,
        _room: int,
    ) -> None:
        """Serve LightGBM's `AllgatherFunction`."""
        own = _bytes_at(mine, size).copy()  # the output may have its place
        counts = lengths[:ranks]
        try:
            with self.signals.at_once():
                everything = self._gather(own, counts)
            self._lengths = everything.view(np.int32).tolist() if counts == [4] * ranks else []
        except BaseException as error:
            self._fail(error)
            everything = self._in_place_of_all(own, counts)
        ends = np.cumsum(counts)
        for start, length, end in zip(starts[:ranks], counts, ends, strict=True):
            _bytes_at(output + start, length)[:] = everything[end - length : end]

    def _gather(self, mine: Bytes, counts: Sequence[int]) -> Bytes:
        name = "lightgbm: data of all ranks"
        return np.asarray(
            self._comm.allgather(mine, name=name, counts=counts, timeout=self._timeout)
        )

    def _in_place_of_all(self, own: Bytes, counts: Sequence[int]) -> Bytes:
        """Return what LightGBM can read after a failure.

        Data whose lengths the ranks have told each other before are bins of features. There each
        rank has others, so no rank's own data can replace another's. In bytes of ones LightGBM
        finds a negative number of bins, and raises its error at once.
        """
        if list(counts) == self._lengths or len(set(counts)) > 1:
            return np.full(sum(counts), 0xFF, np.uint8)
        return np.tile(own, len(counts))


def _bytes_at(address: int | None, size: int) -> Bytes:
    """Return memory of LightGBM as an array, without a copy."""
    if not size:
        return np.zeros(0, np.uint8)  # its address may be null
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address or 0))
