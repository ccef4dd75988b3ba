# SPDX-License-Identifier: Apache-2.0
"""Each block's exponent, and which blocks are all zeros, so that they are skipped.

That is what a rank finds in its own tensor before it sends anything (OmniReduce, Fei et al.,
SIGCOMM 2021), in machine code where there is any, and else number by number. Over all ranks the
switch keeps the smallest next block and the largest exponent (`offer_more` in
p4src/v1model/slots.p4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import ValueRangeError
from p4reduce.machine_code import native_library
from p4reduce.wire.format import NONFINITE_EXPONENT

Rows = npt.NDArray[Any]
"""Shape (blocks, lanes of a block)."""

INTEGERS, FLOAT16, FLOAT32, FLOAT64 = range(4)
"""`enum p4r_numbers`."""

_NUMBERS = {"e": FLOAT16, "f": FLOAT32, "d": FLOAT64}
_WORD_BYTES = 8
_LARGE = 1 << 18  # bytes, from which on other threads may run meanwhile


def numbers_of(dtype: np.dtype[Any]) -> int:
    """Return the `enum p4r_numbers` of a dtype."""
    return _NUMBERS.get(dtype.char, INTEGERS)


class BlockTables:
    """What a rank knows of its own blocks, for machine code too.

    All of it is one array, as to make an array and to ask for its address takes long.

    Attributes:
        left: two words, for what is left to do.
        next_nonzero: what `look_ahead` finds; shape (at least count + stripes,).
        exponents: of each block, and a last one of 0; shape (count + 1,).
        nonzero: whether each block holds anything but zeros; shape (count,).
        left_at, next_nonzero_at, exponents_at, nonzero_at: their addresses.

    Args:
        count: blocks.
        stripes: how many there are: block b is in stripe b modulo that.
    """

    __slots__ = (
        "exponents",
        "exponents_at",
        "left",
        "left_at",
        "next_nonzero",
        "next_nonzero_at",
        "nonzero",
        "nonzero_at",
        "stripes",
    )

    def __init__(self, count: int, stripes: int = 1) -> None:
        following = 2 + (-(-count // stripes) + 1) * stripes
        words = np.zeros(following + -(-(2 * count + 1) // _WORD_BYTES), np.int64)
        octets = words[following:].view(np.uint8)
        address: int = words.ctypes.data
        self.stripes = stripes
        self.left, self.left_at = words[:2], address
        self.next_nonzero, self.next_nonzero_at = words[2:following], address + 2 * _WORD_BYTES
        self.exponents, self.exponents_at = octets[: count + 1], address + following * _WORD_BYTES
        self.nonzero: npt.NDArray[np.bool_] = octets[count + 1 : 2 * count + 1].view(np.bool_)
        self.nonzero_at = self.exponents_at + count + 1

    def look_ahead(self) -> int:
        """Find for each block the first one from it on, in its stripe, that is not all zeros.

        That is the number of blocks where there is none.

        Returns:
            How many blocks are not all zeros.
        """
        count, stripes = len(self.nonzero), self.stripes
        library = native_library()
        if library is not None:
            return int(library.look_ahead(self.nonzero_at, count, stripes, self.next_nonzero_at))
        following = self.next_nonzero
        following.fill(count)
        for block in reversed(range(count)):
            following[block] = block if self.nonzero[block] else following[block + stripes]
        return int(np.count_nonzero(self.nonzero))


def exponent_of(numbers: Sequence[float]) -> int:
    """Return float32's biased exponent of the largest magnitude in a block; 255: not finite.

    Raises:
        ValueRangeError: a float64 number is finite, but 2^128 or more.
    """
    if not all(map(math.isfinite, numbers)):
        return NONFINITE_EXPONENT
    largest = max(numbers, key=abs)
    exponent = max(0, math.frexp(largest)[1] + 126) if largest else 0
    if exponent >= NONFINITE_EXPONENT:
        raise ValueRangeError(
            f"{largest} is out of the range of float32 (magnitude 2^128 or more), which also "
            "limits float64 arrays; scale the array down"
        )
    return exponent


def block_exponents(
    rows: Rows,
    tables: BlockTables,
    first: int = 0,
    residual: Rows | None = None,
    address: int | None = None,
) -> None:
    """Find each block's exponent, and whether it holds anything but zeros.

    Args:
        rows: float16, float32, float64 or integers, shape (blocks, lanes). For integers the
            exponents are 0, as they mean nothing.
        tables: take what is found.
        first: the place of the first row in the tables.
        residual: is added to the rows first, which have to be C-contiguous then; of their dtype.
        address: of the rows, which are C-contiguous; None: not known.

    Raises:
        ValueRangeError: a float64 number is finite, but 2^128 or more.
    """
    library = native_library()
    if library is None:
        if residual is not None:
            rows += residual
        for block, row in enumerate(rows.tolist(), first):
            tables.exponents[block] = exponent_of(row) if rows.dtype.kind == "f" else 0
            tables.nonzero[block] = any(row)
        return
    if address is None:
        rows = np.ascontiguousarray(rows)
        address = rows.ctypes.data
    measure = library.measure if rows.nbytes < _LARGE else library.measure_freely
    beyond = measure(
        numbers_of(rows.dtype),
        rows.itemsize,
        address,
        *rows.shape,
        tables.exponents_at + first,
        tables.nonzero_at + first,
        None if residual is None else residual.ctypes.data,
    )
    if beyond >= 0:
        exponent_of(rows[beyond].tolist())  # says so
