# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy arrays: the same memory where that is possible, else a copy and its way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

REDUCIBLE = frozenset(
    {
        *(torch.float16, torch.float32, torch.float64, torch.bfloat16),
        *(torch.int8, torch.int16, torch.int32),
    }
)
"""What the switch sums. bfloat16 is widened to float32, and rounded again at the end."""

_LARGEST = 2.0**128  # what the exponents of blocks end at


def nothing() -> None:
    """Do nothing: nothing has to be written back."""


@dataclass(frozen=True)
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
        shape = tuple(tensor.shape)
        if self.array.size != tensor.numel():
            shape = *shape, tensor.element_size()
        return self.array.reshape(shape)


def array_of(tensor: torch.Tensor) -> TensorArray:
    """Lend a dense tensor to a reduction. Its dtype is one of `REDUCIBLE`."""
    tensor = tensor.detach()
    flat = _flat_here(tensor)
    if flat.dtype == torch.bfloat16:
        wide = flat.float()
        return TensorArray(wide.numpy(), lambda: _write(tensor, wide))
    array = flat.numpy()
    if flat.dtype == torch.float64 and (clipped := _clipped(array)) is not None:
        return TensorArray(clipped, lambda: _write(tensor, torch.from_numpy(clipped)))
    if _is_same_memory(flat, tensor):
        return TensorArray(array)
    return TensorArray(array, lambda: _write(tensor, flat))


def output_array(tensor: torch.Tensor) -> TensorArray:
    """Lend a dense tensor that is only written to. Its dtype is one of `REDUCIBLE`."""
    tensor = tensor.detach()
    here = tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16
    if here and tensor.is_contiguous() and not tensor.is_neg():
        return TensorArray(tensor.view(-1).numpy())
    wide = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
    numbers = torch.empty(tensor.numel(), dtype=wide)
    return TensorArray(numbers.numpy(), lambda: _write(tensor, numbers))


def bytes_array_of(tensor: torch.Tensor) -> TensorArray:
    """Lend a dense tensor of any dtype as bytes, for a copy."""
    tensor = tensor.detach()
    if not tensor.numel():  # torch does not see a view of nothing as other numbers
        return TensorArray(np.empty(0, np.uint8))
    flat = _flat_here(tensor)
    array = flat.view(torch.uint8).numpy()
    if _is_same_memory(flat, tensor):
        return TensorArray(array)
    return TensorArray(array, lambda: _write(tensor, flat))


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return how many bytes tensors have."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Dense:
    """Tensors for Gloo, which reads memory regardless of strides.

    Attributes:
        tensors: those given, or contiguous copies of those that are not contiguous.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._given = tensors
        self.tensors = [_dense_of(tensor) for tensor in tensors]

    def put_back(self) -> None:
        """Write the copies back to the given tensors."""
        for tensor, dense in zip(self._given, self.tensors, strict=True):
            if dense is not tensor:
                tensor.detach().copy_(dense)


def _dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself if its numbers lie one after the other, or is sparse; else a copy."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return tensor
    return tensor.detach().contiguous()


def _flat_here(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers in this host's memory, one after the other."""
    if tensor.device.type != "cpu":
        # Pinned, so that the copies run by DMA; both wait for the stream that made the tensor.
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return here.copy_(tensor).view(-1)
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def _is_same_memory(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    return bool(flat.device == tensor.device and flat.data_ptr() == tensor.data_ptr())


def _write(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    tensor.copy_(numbers.view(tensor.shape))


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
