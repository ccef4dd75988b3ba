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

_LARGE = 1 << 18  # bytes, from which on other threads may run meanwhile


def numbers_of(dtype: np.dtype[Any]) -> int:
    """Return the `enum p4r_numbers` of a dtype."""
    return {"e": FLOAT16, "f": FLOAT32, "d": FLOAT64}.get(dtype.char, INTEGERS)


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
    exponents: npt.NDArray[np.uint8],
    nonzero: npt.NDArray[np.bool_],
    residual: Rows | None = None,
) -> None:
    """Find each block's exponent, and whether it holds anything but zeros.

    Args:
        rows: float16, float32, float64 or integers, shape (blocks, lanes). For integers the
            exponents are 0, as they mean nothing.
        exponents: shape (blocks,), is written to.
        nonzero: shape (blocks,), is written to.
        residual: is added to the rows first, which have to be C-contiguous then; of their dtype.

    Raises:
        ValueRangeError: a float64 number is finite, but 2^128 or more.
    """
    library = native_library()
    if library is None:
        if residual is not None:
            rows += residual
        for block, row in enumerate(rows.tolist()):
            exponents[block] = exponent_of(row) if rows.dtype.kind == "f" else 0
            nonzero[block] = any(row)
        return
    rows = np.ascontiguousarray(rows)
    measure = library.measure if rows.nbytes < _LARGE else library.measure_freely
    beyond = measure(
        numbers_of(rows.dtype),
        rows.itemsize,
        rows.ctypes.data,
        *rows.shape,
        exponents.ctypes.data,
        nonzero.ctypes.data,
        None if residual is None else residual.ctypes.data,
    )
    if beyond >= 0:
        exponent_of(rows[beyond].tolist())  # says so


def look_ahead(nonzero: npt.NDArray[np.bool_], stripes: int) -> npt.NDArray[np.int64]:
    """Return for each block the first one from it on, in its stripe, that is not all zeros.

    Args:
        nonzero: for each block, whether it is not.
        stripes: how many there are: block b is in stripe b modulo that.

    Returns:
        Shape (at least blocks + stripes,); the number of blocks where there is none.
    """
    count = len(nonzero)
    following = np.empty((-(-count // stripes) + 1) * stripes, np.int64)
    library = native_library()
    if library is not None:
        nonzero = np.ascontiguousarray(nonzero)
        library.look_ahead(nonzero.ctypes.data, count, stripes, following.ctypes.data)
        return following
    following.fill(count)
    for block in reversed(range(count)):
        following[block] = block if nonzero[block] else following[block + stripes]
    return following
