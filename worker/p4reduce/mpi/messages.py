# SPDX-License-Identifier: Apache-2.0
"""Reads all forms of mpi4py's buffers as arrays, so that all ranks decide alike.

Two ranks may give the same message in different forms. Only type and count decide whether the call
goes through the switch; MPI requires both to be equal on all ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

_NAMES = (
    (MPI.FLOAT, "float32"),
    (MPI.DOUBLE, "float64"),
    (MPI.INT, "int32"),
    (MPI.INT32_T, "int32"),
)
_SUMMED = {name for _, name in _NAMES}
_CODES = {
    "f": "float32",
    "d": "float64",
    "i": "int32",
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "f4": "float32",
    "f8": "float64",
    "i4": "int32",
}


def array_of(message: Any) -> npt.NDArray[Any] | None:
    """Return a message's memory as an array of one dimension; None for other types.

    Args:
        message: a buffer in host memory, or a list or tuple of a buffer and a datatype, with a
            count or a pair of count and displacement between them, as mpi4py's `Allreduce` takes.

    Raises:
        ValueError: the buffer is not contiguous, or smaller than the message says.
    """
    parts = list(message) if isinstance(message, list | tuple) else [message]
    if not parts:
        return None
    data, count, displacement, datatype = parts[0], None, 0, None
    for part in parts[1:]:
        if isinstance(part, str | MPI.Datatype):
            datatype = part
        elif isinstance(part, list | tuple):
            if len(part) != 2 or not all(isinstance(one, int | np.integer) for one in part):
                return None
            count, displacement = int(part[0]), int(part[1])
        elif isinstance(part, int | np.integer):
            count = int(part)
        elif part is not None:
            return None
    data = _host_memory(data)
    name = _type_of(data, datatype)
    if name is None:
        return None
    whole = _numbers(data, np.dtype(name))
    if count is None:
        count = whole.size - displacement
    if not 0 <= displacement <= displacement + count <= whole.size:
        raise ValueError(
            f"a message of {count} {name} from number {displacement} on is not within its buffer, "
            f"which has {whole.size}"
        )
    return whole[displacement : displacement + count]


def _host_memory(data: Any) -> Any:
    """Return what numpy reads of tensors that only have `__dlpack__`, such as torch's."""
    if isinstance(data, np.ndarray) or not hasattr(data, "__dlpack__"):
        return data
    try:
        return np.from_dlpack(data)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return data  # on a device, or of a type that numpy lacks: it is MPI's


def _type_of(data: Any, datatype: Any) -> str | None:
    if isinstance(datatype, MPI.Datatype):
        return next((name for one, name in _NAMES if one == datatype), None)
    if isinstance(datatype, str):
        return _CODES.get(datatype)
    try:
        own = np.asarray(data).dtype if hasattr(data, "__array_interface__") else None
        own = np.dtype(memoryview(data).format) if own is None else own
    except (TypeError, ValueError):
        return None
    return own.name if own.name in _SUMMED and own.isnative else None


def _numbers(data: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # Also of arrays in Fortran's order: contiguous memory, whatever its order.
    if isinstance(data, np.ndarray) and data.flags.f_contiguous and not data.flags.c_contiguous:
        data = data.T
    view = memoryview(data)
    if not view.contiguous:
        raise ValueError("the buffer of an all-reduce is not contiguous, which MPI requires")
    if not view.nbytes:
        return np.empty(0, dtype)  # a view of nothing may have dimensions that none is cast from
    return np.frombuffer(view.cast("B"), dtype)
