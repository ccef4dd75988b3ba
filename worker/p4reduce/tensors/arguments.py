# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of collectives. Errors name the value and what would be right."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from p4reduce.checks import listed, whole_number
from p4reduce.errors import P4ReduceError
from p4reduce.tensors.blocks import Array
from p4reduce.tensors.stream import DTYPES
from p4reduce.wire.calls import MAX_CLASSES, Operation, Priority
from p4reduce.wire.format import Format

_OPERATIONS = " or ".join(repr(operation.name.lower()) for operation in Operation)
_NAMES = ", ".join(repr(name.lower()) for name in Priority.__members__)
_PRIORITIES = f"{_NAMES} or a class from 0 to {MAX_CLASSES - 1}"
_REDUCIBLE = frozenset(np.dtype(kind) for kind in DTYPES)
_ALLOWED = ", ".join(np.dtype(kind).name for kind in DTYPES)
# What to make of an array that cannot be reduced, by its kind and bytes.
_INSTEAD = {
    "b1": "array.astype(numpy.int8) counts the ranks that have True, 127 at most",
    "u1": "array.astype(numpy.int16) has room for the sum of 128 ranks",
    "u2": "array.astype(numpy.int32) has room for the sum of 32,768 ranks",
    "c8": "array.view(numpy.float32) has real and imaginary parts side by side",
    "c16": "array.view(numpy.float64) has real and imaginary parts side by side",
    "f16": "array.astype(numpy.float64) is the widest float there is",
}


class SupportsArray(Protocol):
    """Anything that numpy can see as an array: a numpy array, a PyTorch tensor on the CPU."""

    def __array__(self) -> Array: ...


def operation_of(op: Operation | str, dtype: np.dtype[Any] | None = None) -> Operation:
    """Return an operation, given as such or by name in any case.

    Raises:
        TypeError: it is neither, or not possible for this dtype.
        ValueError: no operation has that name.
    """
    if isinstance(op, str):
        named = Operation.__members__.get(op.upper())
        if named is None:
            raise ValueError(f"op={short(op)}: {_OPERATIONS} is needed")
        op = named
    if not isinstance(op, Operation):
        raise TypeError(f"op={short(op)}: {_OPERATIONS} is needed, or SUM or MEAN of p4reduce")
    if op is Operation.MEAN and dtype is not None and dtype.kind != "f":
        raise TypeError(f"op=MEAN needs floats, not {dtype}; SUM works")
    return op


def class_of(priority: int | str) -> int:
    """Return the class of a priority, given by number or by name in any case.

    Raises:
        TypeError: it is neither.
        ValueError: no class has that name or number.
    """
    if isinstance(priority, Priority):
        return int(priority)
    if isinstance(priority, str):
        named = Priority.__members__.get(priority.upper())
        if named is None:
            raise ValueError(f"priority={short(priority)}: {_PRIORITIES} is needed")
        return int(named)
    number = whole_number("priority", priority, f"{_PRIORITIES} is needed")
    if not 0 <= number < MAX_CLASSES:
        raise ValueError(f"priority={number}: {_PRIORITIES} is needed")
    return number


def any_array(array: SupportsArray) -> Array:
    """Return an argument as an array of any dtype without Python objects.

    Raises:
        TypeError: it is none, or cannot be converted to one.
    """
    check_unmasked("array", array)
    source = converted("array", array, _with_its_method)
    if source.dtype.hasobject:
        raise TypeError(
            f"array of dtype {source.dtype}: Python objects cannot be sent; numbers can"
        )
    return source


def converted(argument: str, value: Any, convert: Callable[[Any], Array] = np.asarray) -> Array:
    """Return what `convert` makes of an argument.

    Raises:
        TypeError, ValueError: it cannot be converted. Another exception of the object's own code
            is a TypeError as well: nothing has begun, and the caller can tell by the type.
    """
    if type(value) is np.ndarray:
        return value
    try:
        return convert(value)
    except (TypeError, ValueError, MemoryError, P4ReduceError):
        raise
    except Exception as error:
        raise TypeError(
            f"{argument} of type {type(value).__name__} cannot be converted to a numpy array: "
            f"{type(error).__name__}: {error}"
        ) from error


def _with_its_method(array: Any) -> Array:
    if not hasattr(array, "__array__"):
        _check_on_host(array)
        raise TypeError(
            f"array={short(array)}: a numpy array is needed, or something with __array__, not "
            f"{type(array).__name__}"
        )
    try:
        return np.asarray(array)
    except Exception:
        _check_on_host(array)
        raise


_HOST = frozenset({1, 3, 11})  # DLPack's kDLCPU, and memory pinned for CUDA and for ROCm


def _check_on_host(array: Any) -> None:
    """Say what to do with an array of a device, which has no memory that numpy can read.

    Raises:
        TypeError: it is one.
    """
    on_device = False
    with suppress(Exception):  # of the object's own code
        on_device = array.__dlpack_device__()[0] not in _HOST
    with suppress(Exception):  # as torch's where a tensor on a GPU needs a gradient
        on_device = on_device or hasattr(array, "__cuda_array_interface__")
    if on_device:
        raise TypeError(
            f"array of type {type(array).__name__} is in a device's memory: copy it to the host "
            "first (tensor.cpu(), cupy.asnumpy(array)), or sum tensors by "
            'torch.distributed with the backend "p4reduce"'
        )


def check_unmasked(argument: str, array: object) -> None:
    """Refuse masked arrays, because masked elements would be sent like the others."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{argument} is a masked array, and the mask would be lost; {argument}.filled(0) has "
            "zeros where it is masked"
        )


def short(value: object) -> str:
    """Return a value as text, cut if it is long."""
    return reprlib.repr(value)


def reducible_array(array: SupportsArray, op: Operation | str) -> tuple[Array, Operation]:
    """Return an argument as an array that `op` can reduce, and that operation."""
    source = any_array(array)
    check_dtype(source.dtype)
    return source, operation_of(op, source.dtype)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse dtypes that the switch cannot sum."""
    if dtype in _REDUCIBLE:
        return
    hint = _INSTEAD.get(f"{dtype.kind}{dtype.itemsize}")
    if dtype.newbyteorder("=") in _REDUCIBLE:
        hint = f"array.astype(numpy.{dtype.name}) has the machine's own byte order"
    elif dtype.kind in "iu" and dtype.itemsize > 2:
        hint = "array.astype(numpy.int32), if the sums fit into that"
    raise TypeError(
        f"dtype {dtype} cannot be reduced; these can: {_ALLOWED}" + (f". {hint}" if hint else "")
    )


def output_like(source: Array, out: Array | None) -> Array:
    """Return `out` if it fits the input, or a new array.

    Raises:
        TypeError, ValueError: `out` does not fit, or overlaps the input without being the same.
    """
    if out is None:
        return np.empty(source.shape, source.dtype)
    output_of(source.shape, source.dtype, out)
    if source is not out and np.may_share_memory(source, out) and not same_memory(source, out):
        raise ValueError("out overlaps the array without being the same memory")
    return out


def output_of(
    shape: tuple[int, ...], dtype: np.dtype[Any], out: Array | None, argument: str = "out"
) -> Array:
    """Return `out` if it has that shape and dtype and is writable, or a new array.

    Raises:
        TypeError, ValueError: it does not fit; names the argument.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray):
        raise TypeError(
            f"{argument}={short(out)} has to be a numpy array, not {type(out).__name__}"
        )
    if isinstance(out, np.ma.MaskedArray):
        raise TypeError(
            f"{argument} is a masked array, whose mask would not fit; {argument}.data has none"
        )
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(
            f"{argument} has shape {out.shape} and dtype {out.dtype}, not {shape} and {dtype}"
        )
    if not out.flags.c_contiguous:
        raise ValueError(f"{argument} has to be C-contiguous; reduce into a copy and assign that")
    if not out.flags.writeable:
        raise ValueError(f"{argument} is read-only")
    return out


def check_residual(residual: Array, source: Array, result: Array, lanes: Format) -> None:
    """Check the array for the rounding errors of an all-reduce.

    Raises:
        TypeError, ValueError: it does not fit, or nothing is rounded at random.
    """
    if source.dtype.kind != "f" or lanes is Format.INT32:
        raise ValueError(
            'residual needs floats with precision "int16", "int8" or "int4": other lanes leave '
            "nothing out that would matter"
        )
    output_of(source.shape, source.dtype, residual, "residual")
    if any(np.may_share_memory(residual, other) for other in (source, result)):
        raise ValueError("residual overlaps the array or out")


def same_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays of one shape and dtype share their memory exactly."""
    return one.ctypes.data == other.ctypes.data and one.strides == other.strides


def check_root(root: int, world_size: int) -> int:
    """Return the root's rank from an argument."""
    number = whole_number("root", root, "the number of a rank is needed")
    if not 0 <= number < world_size:
        raise ValueError(f"root={root!r}: there are the ranks 0 to {world_size - 1}")
    return number


def check_counts(counts: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return the number of rows per rank from an argument."""
    needed = "a number of rows for each rank is needed"
    given = listed("counts", counts, needed)
    try:
        numbers = tuple(whole_number("counts", count) for count in given)
    except TypeError:
        raise TypeError(f"counts={counts!r}: {needed}") from None
    if len(numbers) != world_size or min(numbers) < 0:
        raise ValueError(
            f"counts={list(numbers)}: {world_size} numbers of rows are needed, one for each rank"
        )
    return numbers
