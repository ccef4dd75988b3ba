# SPDX-License-Identifier: Apache-2.0
"""Which lanes carry which numbers, and the error bound of sums of floats (docs/lanes.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.checks import number_within
from p4reduce.errors import ValueRangeError
from p4reduce.tensors.arguments import operation_of
from p4reduce.tensors.quantise import headroom
from p4reduce.tensors.stochastic import largest_world_size
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import MAX_WORLD_SIZE, Format

PRECISIONS = {
    "int32": Format.INT32,
    "int16": Format.INT16,
    "int8": Format.INT8,
    "int4": Format.INT4,
}
"""What `precision` of a float collective can be: the type of the lanes that numbers travel in."""

WRAP = "wrap32"
"""What `precision` of a collective of int32 can be: lanes that add modulo 2^32."""

VOTES = "int4"
"""What `precision` of a collective of int8 can be: lanes of 4 bits, for small numbers."""

_SMALLEST_NORMAL = 2.0**-126  # of float32: smaller numbers share its exponent


def lane_format(dtype: np.dtype[Any], precision: str | None, world_size: int) -> Format:
    """Return the lanes for numbers of a dtype that can be reduced.

    Integers travel in lanes of their own width, int32 also in those that wrap and int8 in those of
    4 bits; floats in those of `precision`, None for int32.

    Raises:
        TypeError: a precision for integers, other than wrapping lanes for int32 or 4 bits for
            int8.
        ValueError: there is no such precision, or it has no room for that many ranks.
    """
    if precision == WRAP:
        if dtype != np.int32:
            raise TypeError(f"precision={WRAP!r} is for int32, not for {dtype}")
        return Format.WRAP32
    if dtype.kind != "f":
        if precision == VOTES:
            if dtype != np.int8:
                raise TypeError(f"precision={VOTES!r} is for int8 and floats, not for {dtype}")
            return Format.INT4
        if precision is not None:
            raise TypeError(
                f"precision={precision!r} is for floats; sums of {dtype} are exact without it"
            )
        return PRECISIONS.get(dtype.name, Format.INT32)
    return _float_format(precision, world_size)


def _float_format(precision: str | None, world_size: int) -> Format:
    if precision is None:
        return Format.INT32
    chosen = PRECISIONS.get(precision) if isinstance(precision, str) else None
    if chosen is None:
        raise ValueError(
            f"precision={precision!r}: {', '.join(map(repr, PRECISIONS))} or None is needed"
        )
    if chosen is not Format.INT32 and world_size > largest_world_size(chosen):
        wider = next(
            name
            for name in reversed(PRECISIONS)
            if PRECISIONS[name].lane_bits > chosen.lane_bits
            and world_size <= largest_world_size(PRECISIONS[name])
        )
        raise ValueError(
            f"precision={precision!r} leaves {world_size} ranks no bit besides the sign, as their "
            f"sum has to fit into a lane: it is for {largest_world_size(chosen)} ranks at most; "
            f"take {wider!r}"
        )
    return chosen


def check_votes(numbers: npt.NDArray[Any], lanes: Format) -> None:
    """Refuse integers that do not fit into lanes of 4 bits. Other lanes hold any.

    Raises:
        ValueRangeError: names the first that is not within -7 to 7.
    """
    if lanes is not Format.INT4 or numbers.dtype.kind == "f" or not numbers.size:
        return
    most = lanes.lane_maximum
    if numbers.max() <= most and numbers.min() >= -most:
        return
    flat = numbers.reshape(-1)
    where = int(np.argmax((flat > most) | (flat < -most)))
    raise ValueRangeError(
        f"element {where:,} is {flat[where]}, but precision={VOTES!r} holds numbers from {-most} "
        f"to {most}; without it, int8 holds what this array has"
    )


def error_bound(
    largest: npt.ArrayLike,
    world_size: int,
    precision: str | None = None,
    op: Operation | str = Operation.SUM,
) -> Any:
    """Return the largest distance between an element of a reduced float array and the exact result.

    With n ranks and `largest` below 2^e, the next power of two, that is

    - int32: n * 2^(e - k), with the largest k that has n * 2^k <= 2^31;
    - int16: n * 2^e * (1 / M + 2^-24), with M = 32,767 // n;
    - int8: the same with M = 127 // n;
    - int4: the same with M = 7 // n;

    and 1/n of that for the mean. The result's own rounding to its dtype is not included. Of a mean
    of float32 or float16 the sum has been rounded to float32 before it is divided.

    Args:
        largest: the largest magnitude, on any rank, in the block that the element is in. A block
            is 256, 512, 1,024 or 2,048 elements in a row (int32, int16, int8, int4). The first one
            begins at the first element. A number or an array of them; the largest of a whole
            tensor gives a bound for all of it.
        world_size: number of ranks.
        precision: as given to `allreduce`.
        op: as given to `allreduce`.

    Returns:
        float64, of the shape of `largest`.

    Raises:
        ValueError: see `Communicator.allreduce`; a magnitude that is negative or not finite.
    """
    world_size = number_within("world_size", world_size, 1, MAX_WORLD_SIZE)
    magnitudes = np.asarray(largest, np.float64)
    if not (np.isfinite(magnitudes).all() and (magnitudes >= 0).all()):
        raise ValueError(f"largest={largest!r}: finite magnitudes of 0 or more are needed")
    lanes = _float_format(precision, world_size)
    if lanes is Format.INT32:
        unit = 2.0 ** -headroom(world_size)
    else:
        unit = 1 / (lanes.lane_maximum // world_size) + 2.0**-24
    _, exponents = np.frexp(np.maximum(magnitudes, _SMALLEST_NORMAL))
    ranks = 1 if operation_of(op) is Operation.MEAN else world_size
    bound = np.ldexp(ranks * unit, exponents)
    return np.where(magnitudes == 0, 0.0, bound)[()]
