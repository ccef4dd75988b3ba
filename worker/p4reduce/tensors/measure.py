# SPDX-License-Identifier: Apache-2.0
"""Each block's exponent, and which blocks are all zeros, so that they are skipped.

That is what a rank finds in its own tensor before it sends anything (OmniReduce, Fei et al.,
SIGCOMM 2021), in machine code where there is any. Over all ranks the switch keeps the smallest next
block and the largest exponent (`join_round` in p4src/include/aggregation.p4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import native_library
from p4reduce.tensors import quantise

INTEGERS, FLOAT16, FLOAT32, FLOAT64 = range(4)
"""`enum p4r_numbers`."""

_LARGE = 1 << 18  # bytes, from which on other threads may run meanwhile


def numbers_of(dtype: np.dtype[Any]) -> int:
    """Return a dtype's `enum p4r_numbers`."""
    return {"e": FLOAT16, "f": FLOAT32, "d": FLOAT64}.get(dtype.char, INTEGERS)


def block_exponents(
    rows: quantise.Rows,
    exponents: npt.NDArray[np.uint8],
    nonzero: npt.NDArray[np.bool_],
    copy: quantise.Rows | None = None,
) -> None:
    """Do as `quantise.block_exponents`, and copy the rows into `copy`, which is C-contiguous."""
    library = native_library()
    if library is None or not rows.flags.c_contiguous or not rows.dtype.isnative:
        quantise.block_exponents(rows, exponents, nonzero)
        if copy is not None:
            copy[:] = rows
        return
    measure = library.measure if rows.nbytes < _LARGE else library.measure_freely
    beyond = measure(
        numbers_of(rows.dtype),
        rows.itemsize,
        rows.ctypes.data,
        *rows.shape,
        exponents.ctypes.data,
        nonzero.ctypes.data,
        None if copy is None else copy.ctypes.data,
    )
    if beyond >= 0:
        quantise.block_exponents(rows[beyond : beyond + 1], exponents, nonzero)  # says so


def look_ahead(nonzero: npt.NDArray[np.bool_], stripes: int) -> npt.NDArray[np.int64]:
    """Return for each block the first one from it on in its stripe that is not all zeros.

    Args:
        nonzero: for each block, whether it is not.
        stripes: how many there are: block b is in stripe b modulo that.

    Returns:
        Shape (at least blocks + stripes,); the number of blocks where there is none.
    """
    count = len(nonzero)
    steps = -(-count // stripes) + 1
    library = native_library()
    if library is None or not nonzero.flags.c_contiguous:
        return _look_ahead(nonzero, steps, stripes)
    following = np.empty(steps * stripes, np.int64)
    library.look_ahead(nonzero.ctypes.data, count, stripes, following.ctypes.data)
    return following


def _look_ahead(nonzero: npt.NDArray[np.bool_], steps: int, stripes: int) -> npt.NDArray[np.int64]:
    """One running minimum from the end, over all stripes at once."""
    count = len(nonzero)
    blocks = np.full((steps, stripes), count, np.int64)
    blocks.reshape(-1)[:count] = np.where(nonzero, np.arange(count), count)
    return np.ascontiguousarray(np.minimum.accumulate(blocks[::-1], axis=0)[::-1].reshape(-1))
