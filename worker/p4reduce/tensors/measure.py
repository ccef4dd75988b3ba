# SPDX-License-Identifier: Apache-2.0
"""Exponents of blocks: `quantise.block_exponents` in machine code."""

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
    rows: quantise.Rows, exponents: npt.NDArray[np.uint8], nonzero: npt.NDArray[np.bool_]
) -> None:
    """Do as `quantise.block_exponents`."""
    library = native_library()
    if library is None or not rows.flags.c_contiguous or not rows.dtype.isnative:
        quantise.block_exponents(rows, exponents, nonzero)
        return
    measure = library.measure if rows.nbytes < _LARGE else library.measure_freely
    beyond = measure(
        numbers_of(rows.dtype),
        rows.itemsize,
        rows.ctypes.data,
        *rows.shape,
        exponents.ctypes.data,
        nonzero.ctypes.data,
    )
    if beyond >= 0:
        quantise.block_exponents(rows[beyond : beyond + 1], exponents, nonzero)  # says so
