# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy arrays: the same memory where that is possible, else a copy and its way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

REDUCIBLE = frozenset(
    {
        torch.float16,
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
    }
)
"""What the switch sums. bfloat16 is widened to float32, and rounded again at the end."""

_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
}
_WIDENED = frozenset({torch.int8, torch.int16, torch.uint8})
_LARGEST = 2.0**128  # what the exponents of blocks end at
_OVERLAPS = 1  # of torch: some elements surely share memory


def nothing() -> None:
    """Do nothing: nothing has to be written back."""


@dataclass(frozen=True)
class Scaling:
    """What a reduction does to each rank's numbers before the sum, and to the sum.

    Attributes:
        factor: multiplies the numbers; None: it does not.
        divisor: divides sums, those of integers rounding down; None: it does not.
    """

    factor: float | torch.Tensor | None = None
    divisor: int | None = None

    def before(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the numbers to sum: the same tensor if nothing has to be done."""
        if self.factor is not None:
            return (numbers.detach() * self.factor).to(numbers.dtype)
        return numbers.to(self.dtype(numbers.dtype))

    def after(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the result: the same tensor if nothing has to be done."""
        if self.divisor is None:
            return sums
        return sums.div(self.divisor, rounding_mode=None if sums.is_floating_point() else "floor")

    def dtype(self, given: torch.dtype) -> torch.dtype:
        """Return the dtype of the sums: a mean of small integers fits where the sum does not."""
        return torch.int32 if self.divisor is not None and given in _WIDENED else given


UNSCALED = Scaling()


@dataclass(slots=True)
class TensorArray:
    """A tensor's numbers, flat, for a collective to read and write.

    Attributes:
        array: one-dimensional and C-contiguous.
        put_back: writes the array to the tensor, where it is not the same memory.
    """

    array: Array
    put_back: Callable[[], None] = nothing

    def shaped(self, tensor: torch.Tensor) -> Array:
        """Return the array in its tensor's shape, on which ranks are to agree.

        Bytes have one dimension more than the tensor.
        """
        shape: tuple[int, ...] = tensor.shape
        if self.array.size != tensor.numel():
            shape = *shape, tensor.element_size()
        return self.array.reshape(shape)


class _Memory:
    """A tensor's memory, for numpy, which keeps this object and so the tensor."""

    def __init__(self, tensor: torch.Tensor, size: int, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": (size,),
            "typestr": dtype.str,
        }


def memory_of(tensor: torch.Tensor, dtype: npt.DTypeLike | None = None) -> Array:
    """Return a contiguous CPU tensor's memory as a flat array.

    By its address: `Tensor.numpy` marks the tensor's storage as one that can never be resized.
    FSDP resizes storages.

    Args:
        tensor: lives as long as the array does.
        dtype: of the array; numpy's. None: that of the tensor.
    """
    kind = _DTYPES[tensor.dtype] if dtype is None else np.dtype(dtype)
    size = tensor.numel() * tensor.element_size() // kind.itemsize
    if not size:  # it may have no address
        return np.empty(0, kind)
    return np.asarray(_Memory(tensor, size, kind))


def tensor_from(array: Array) -> torch.Tensor:
    """Return a copy of an array as a tensor of torch's own memory, which can be resized."""
    return torch.from_numpy(array).clone()


def array_of(tensor: torch.Tensor, scaling: Scaling = UNSCALED) -> TensorArray:
    """Lend a dense tensor to a reduction.

    Args:
        tensor: its dtype, or `scaling.dtype` of that, is one of `REDUCIBLE`.
        scaling: what the reduction does beside the sum.
    """
    tensor = tensor.detach()
    lent = scaling.factor is None and _is_lendable(tensor, scaling)
    numbers = tensor if lent else scaling.before(_widened(_flat_here(tensor)))
    array = memory_of(numbers)
    if numbers.dtype == torch.float64 and (clipped := _clipped(array)) is not None:
        array, numbers, lent = clipped, torch.from_numpy(clipped), False
    if lent:
        return TensorArray(array)
    return TensorArray(array, lambda: write(tensor, scaling.after(numbers)))


def output_array(tensor: torch.Tensor, scaling: Scaling = UNSCALED) -> TensorArray:
    """Lend a dense tensor that is only written to; as `array_of`."""
    tensor = tensor.detach()
    if _is_lendable(tensor, scaling):
        return TensorArray(memory_of(tensor))
    dtype = torch.float32 if tensor.dtype == torch.bfloat16 else scaling.dtype(tensor.dtype)
    numbers = torch.empty(tensor.numel(), dtype=dtype, device="cpu")
    array = memory_of(numbers)
    return TensorArray(array, lambda: write(tensor, scaling.after(numbers)))


def _is_lendable(tensor: torch.Tensor, scaling: Scaling) -> bool:
    """Whether sums can be written to a tensor's own memory, as they are."""
    return (
        scaling.divisor is None
        and tensor.is_cpu
        and tensor.dtype != torch.bfloat16
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def bytes_array_of(tensor: torch.Tensor) -> TensorArray:
    """Lend a dense tensor of any dtype as bytes, for a copy."""
    tensor = tensor.detach()
    flat = _flat_here(tensor)
    array = memory_of(flat, np.uint8)
    if _is_same_memory(flat, tensor):
        return TensorArray(array)
    return TensorArray(array, lambda: write(tensor, flat))


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return how many bytes tensors have."""
    total = 0
    for tensor in tensors:
        total += tensor.numel() * tensor.element_size()
    return total


def check_targets(collective: str, tensors: Iterable[torch.Tensor]) -> None:
    """Refuse tensors to which no result can be written.

    Raises:
        ValueError: elements of one share their memory.
    """
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_contiguous():
            continue
        if torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
            raise ValueError(
                f"p4reduce: {collective} writes to a tensor of shape {tuple(tensor.shape)} and "
                f"strides {tensor.stride()}, whose elements share memory, as after expand(): give "
                "tensor.contiguous()"
            )


class Dense:
    """Tensors for Gloo, which reads memory regardless of strides.

    Attributes:
        tensors: those given, or copies of those that Gloo cannot take as they are.

    Args:
        tensors: dense or sparse.
        scaling: what a reduction does beside what Gloo computes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], scaling: Scaling = UNSCALED) -> None:
        self._given = tensors
        self._scaling = scaling
        self.tensors = [_dense_of(tensor, scaling) for tensor in tensors]

    def put_back(self) -> None:
        """Write the copies back to the given tensors."""
        for tensor, dense in zip(self._given, self.tensors, strict=True):
            if dense is not tensor or self._scaling.divisor is not None:
                write(tensor, self._scaling.after(dense))


def _dense_of(tensor: torch.Tensor, scaling: Scaling = UNSCALED) -> torch.Tensor:
    """Return a tensor itself if its numbers lie one after the other, or is sparse; else a copy."""
    if tensor.layout != torch.strided:
        return tensor
    plain = tensor.resolve_conj().resolve_neg()
    return scaling.before(plain if plain.is_contiguous() else plain.detach().contiguous())


def _flat_here(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers in this host's memory, one after the other."""
    if tensor.device.type != "cpu":
        # Pinned, so that the copies run by DMA; both wait for the stream that made the tensor.
        here = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
        )
        return here.copy_(tensor).view(-1)
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def _is_same_memory(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    return bool(flat.device == tensor.device and flat.data_ptr() == tensor.data_ptr())


def write(tensor: torch.Tensor, numbers: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Copy to a tensor as many numbers, or a sparse tensor's, whatever mode this thread is in.

    A tensor made within `torch.inference_mode` can only be written to within it.

    Args:
        tensor: receives the numbers.
        numbers: of the same count, in any shape.
        non_blocking: whether an accelerator may copy later, in the order of its stream.
    """
    shaped = numbers if numbers.shape == tensor.shape else numbers.view(tensor.shape)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(shaped, non_blocking=non_blocking)


def _clipped(array: Array) -> Array | None:
    """Return a copy in which what no exponent reaches is infinite; None if there is nothing such.

    Those numbers would be an error on this rank alone, and all others would wait for it. As
    infinity they make their block NaN on all ranks.
    """
    # In float64, 2^128 and above are beyond float32, which is what exponents are for.
    if not array.size:
        return None
    # NaN is passed over, as it may stand beside such a number.
    if max(np.fmax.reduce(array), -np.fmin.reduce(array)) < _LARGEST:
        return None
    return np.where(np.abs(array) >= _LARGEST, np.inf, array)
