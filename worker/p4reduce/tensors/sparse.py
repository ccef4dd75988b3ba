# SPDX-License-Identifier: Apache-2.0
"""Sparse arrays of users, to and from runs: rows, blocks, SciPy's matrices."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4reduce.checks import listed, whole_number
from p4reduce.errors import ValueRangeError
from p4reduce.tensors.arguments import check_dtype, check_unmasked, converted, short
from p4reduce.tensors.blocks import Array, Indices
from p4reduce.tensors.sparse_blocks import Runs


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Some rows of an array whose other rows are zeros, such as an embedding's gradient.

    As TensorFlow's `IndexedSlices`, or a sparse tensor of PyTorch with one sparse dimension:
    `SparseRows(t.indices()[0], t.values(), t.shape)`.

    Attributes:
        indices: which rows, integers, shape (k,), in any order. Rows of a repeated index are added
            up.
        values: the rows, shape (k, *shape[1:]).
        shape: of the whole array, of at least one dimension.
    """

    indices: npt.NDArray[Any]
    values: npt.NDArray[Any]
    shape: tuple[int, ...]

    if TYPE_CHECKING:

        def __init__(
            self, indices: npt.ArrayLike, values: npt.ArrayLike, shape: tuple[int, ...]
        ) -> None: ...

    def __post_init__(self) -> None:
        _as_arrays(self, "indices", "values")

    def to_dense(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        return rows_to_runs(self).dense().reshape(self.shape)


@dataclass(frozen=True, eq=False)
class SparseBlocks:
    """Some blocks of a flat array whose others are zeros, as sparsifying compressors have them.

    Attributes:
        numbers: of the blocks, integers, shape (k,), ascending.
        blocks: their contents, shape (k, elements of a block). A frame holds 256 elements of
            32 bits; blocks of this size, or a multiple of it, are the cheapest.
        size: elements of the whole array. Elements of the last block beyond it must be zero.
    """

    numbers: npt.NDArray[Any]
    blocks: npt.NDArray[Any]
    size: int

    if TYPE_CHECKING:

        def __init__(self, numbers: npt.ArrayLike, blocks: npt.ArrayLike, size: int) -> None: ...

    def __post_init__(self) -> None:
        _as_arrays(self, "numbers", "blocks")

    def to_dense(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        return blocks_to_runs(self).dense()


@dataclass(frozen=True, eq=False)
class SparseElements:
    """Some elements of an array whose others are zeros: a stream of (index, value) pairs.

    Attributes:
        indices: where, in C order, integers, shape (k,), in any order. Values of a repeated index
            are added up.
        values: shape (k,).
        shape: of the whole array; a number of elements is taken as one dimension.
    """

    indices: npt.NDArray[Any]
    values: npt.NDArray[Any]
    shape: tuple[int, ...]

    if TYPE_CHECKING:

        def __init__(
            self, indices: npt.ArrayLike, values: npt.ArrayLike, shape: tuple[int, ...] | int
        ) -> None: ...

    def __post_init__(self) -> None:
        _as_arrays(self, "indices", "values")
        if isinstance(self.shape, (int, np.integer)) and not isinstance(self.shape, bool):
            object.__setattr__(self, "shape", (int(self.shape),))

    def to_dense(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        return elements_to_runs(self).dense().reshape(self.shape)


def _as_arrays(made: SparseRows | SparseBlocks | SparseElements, *attributes: str) -> None:
    for attribute in attributes:
        array = converted(attribute, getattr(made, attribute), np.asanyarray)
        object.__setattr__(made, attribute, array)


# SciPy has no types of its own, and need not be there: its matrices are Any.
SparseArray: TypeAlias = "SparseRows | SparseBlocks | SparseElements | Any"
_KINDS = (SparseRows, SparseBlocks, SparseElements)


def is_sparse(array: object) -> bool:
    """Return whether `to_runs` accepts an object."""
    return isinstance(array, _KINDS) or _is_scipys(array)


def is_vector(array: object) -> bool:
    """Return whether an object is `SparseElements`, or SciPy's with one row or one column."""
    if isinstance(array, SparseElements):
        return True
    return _is_scipys(array) and (len(array.shape) == 1 or 1 in array.shape)  # type: ignore[attr-defined]


def _is_scipys(array: object) -> bool:
    scipy_sparse = sys.modules.get("scipy.sparse")  # a caller with such a matrix has imported it
    return scipy_sparse is not None and bool(scipy_sparse.issparse(array))


def to_runs(
    array: SparseArray,
) -> tuple[Runs, tuple[int, ...], Callable[[Indices, Array], Any]]:
    """Convert a sparse array to runs.

    Returns:
        Runs, the dense shape, and what makes sums of the array's kind. That takes units as long
        as these: their numbers, ascending, and contents, shape (k, elements of a unit).

    Raises:
        TypeError: not a sparse array, or a dtype that cannot be reduced.
        ValueError: shapes do not fit, or an index is out of range, or blocks do not ascend.
        ValueRangeError: repeated rows of integers add up to more than their dtype holds.
    """
    if isinstance(array, SparseRows):
        shape = _dimensions(array.shape)
        return (
            rows_to_runs(array),
            shape,
            lambda numbers, rows: SparseRows(
                numbers, rows.reshape(len(numbers), *shape[1:]), shape
            ),
        )
    if isinstance(array, SparseBlocks):
        runs = blocks_to_runs(array)
        size = runs.size
        return runs, (size,), lambda numbers, rows: SparseBlocks(numbers, rows, size)
    if isinstance(array, SparseElements):
        shape = _dimensions(array.shape)
        return (
            elements_to_runs(array),
            shape,
            lambda places, values: SparseElements(places, values[:, 0], shape),
        )
    if _is_scipys(array):
        return (
            _scipy_to_runs(array),
            tuple(map(int, array.shape)),
            lambda places, values: _scipy_of(places, values[:, 0], array),
        )
    raise TypeError(
        f"array={short(array)}: SparseElements, SparseRows, SparseBlocks or a scipy.sparse matrix "
        f"is needed, not {type(array).__name__}; dense arrays go to allreduce"
    )


def elements_to_runs(array: SparseElements) -> Runs:
    """Convert elements, as `to_runs` does."""
    shape = _dimensions(array.shape)
    indices, values = _checked(array.indices, array.values, "indices", "values")
    if values.ndim != 1:
        raise ValueError(f"values have shape {values.shape}; ({len(indices)},) is needed")
    size = math.prod(shape)
    indices = _in_range(indices, size, "indices", "elements")
    indices, column = _in_order(indices, values[:, None])
    return Runs(indices, column, size)


def rows_to_runs(array: SparseRows) -> Runs:
    """Convert rows, as `to_runs` does."""
    shape = _dimensions(array.shape)
    indices, values = _checked(array.indices, array.values, "indices", "values")
    if values.shape[1:] != shape[1:]:
        raise ValueError(
            f"values have shape {values.shape}; {(len(indices), *shape[1:])} fits shape={shape}"
        )
    indices = _in_range(indices, shape[0], "indices", "rows")
    width = math.prod(shape[1:])
    flat = values.reshape(len(indices), width)
    indices, flat = _in_order(indices, flat)
    if not width:
        return Runs(np.empty(0, np.int64), np.empty((0, 1), flat.dtype), 0)
    return Runs(indices, flat, math.prod(shape))


def blocks_to_runs(array: SparseBlocks) -> Runs:
    """Convert blocks, as `to_runs` does."""
    numbers, blocks = _checked(array.numbers, array.blocks, "numbers", "blocks")
    if blocks.ndim != 2 or not blocks.shape[1]:
        raise ValueError(f"blocks have shape {blocks.shape}; (k, elements of a block) is needed")
    size = _elements(array.size)
    width = blocks.shape[1]
    numbers = _in_range(numbers, -(-size // width), "numbers", f"blocks of {width} elements")
    falling = np.flatnonzero(np.diff(numbers) <= 0)
    if len(falling):
        at = int(falling[0]) + 1
        raise ValueError(
            f"numbers[{at}] = {numbers[at]} comes after {numbers[at - 1]}; they have to ascend"
        )
    if len(numbers) and (numbers[-1] + 1) * width > size:
        beyond = size % width
        if blocks[-1, beyond:].any():
            raise ValueError(
                f"blocks[{len(blocks) - 1}] is not zero from element {beyond} on, where the array "
                f"of {size:,} elements ends"
            )
    return Runs(numbers, np.ascontiguousarray(blocks), size)


def _dimensions(shape: Any) -> tuple[int, ...]:
    needed = "a sequence of integers is needed"
    lengths = listed("shape", shape, needed)
    try:
        dimensions = tuple(whole_number("shape", length) for length in lengths)
    except TypeError:
        raise TypeError(f"shape={shape!r}: {needed}") from None
    if not dimensions or min(dimensions) < 0:
        raise ValueError(f"shape={shape!r}: at least one dimension is needed, and none below 0")
    return dimensions


def _elements(size: Any) -> int:
    number = whole_number("size", size, "an integer number of elements is needed")
    if number < 0:
        raise ValueError(f"size={size!r}: a number of elements is needed")
    return number


def _scipy_to_runs(matrix: Any) -> Runs:
    if len(matrix.shape) > 2:
        raise ValueError(
            f"the sparse array has shape {matrix.shape}; one or two dimensions are needed"
        )
    check_dtype(matrix.dtype)
    coordinates = matrix.tocoo()
    places = coordinates.col.astype(np.int64)
    if len(matrix.shape) == 2:
        places += coordinates.row.astype(np.int64) * matrix.shape[1]
    places, values = _in_order(places, coordinates.data[:, None])
    return Runs(places, values, math.prod(matrix.shape))


def _scipy_of(places: Indices, values: Array, like: Any) -> Any:
    """Return elements in the same format, as a matrix or as an array."""
    import scipy.sparse

    kind = scipy.sparse.coo_matrix
    if not isinstance(like, scipy.sparse.spmatrix):
        kind = scipy.sparse.coo_array
    where = (places,) if len(like.shape) == 1 else np.divmod(places, max(like.shape[1], 1))
    return kind((values, where), shape=like.shape).asformat(like.format)


def _checked(numbers: Array, values: Array, of_numbers: str, of_values: str) -> tuple[Array, Array]:
    check_unmasked(of_numbers, numbers)
    check_unmasked(of_values, values)
    which, contents = converted(of_numbers, numbers), converted(of_values, values)
    if which.ndim != 1 or (which.dtype.kind not in "iu" and len(which)):
        raise TypeError(
            f"{of_numbers} have shape {which.shape} and dtype {which.dtype}; integers in one "
            "dimension are needed"
        )
    check_dtype(contents.dtype)
    if contents.shape[:1] != which.shape:
        raise ValueError(
            f"{of_values} have shape {contents.shape}; there are {len(which)} {of_numbers}"
        )
    return which, contents


def _in_range(numbers: Array, limit: int, of_numbers: str, what: str) -> Indices:
    outside = np.flatnonzero((numbers < 0) | (numbers >= limit))
    if len(outside):
        at = int(outside[0])
        raise ValueError(f"{of_numbers}[{at}] = {numbers[at]}: there are {limit:,} {what}")
    return numbers.astype(np.int64)


def _in_order(numbers: Indices, rows: Array) -> tuple[Indices, Array]:
    """Sort rows by their numbers, and add up those with the same."""
    steps = np.diff(numbers)
    if (steps > 0).all():
        return numbers, np.ascontiguousarray(rows)
    if (steps < 0).any():
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    if len(first) == len(numbers):
        return numbers, rows
    if rows.dtype.kind == "f":
        return numbers[first], np.add.reduceat(rows, first, axis=0)
    wide = np.add.reduceat(rows, first, axis=0, dtype=np.int64)
    sums = wide.astype(rows.dtype)
    if (sums != wide).any():
        number = int(numbers[first][np.argmax((sums != wide).any(axis=1))])
        raise ValueRangeError(
            f"the values given for {number} add up to more than {rows.dtype} holds"
        )
    return numbers[first], sums
