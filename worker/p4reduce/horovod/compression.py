# SPDX-License-Identifier: Apache-2.0
"""Compression of tensors before they are sent, and its reverse."""

from __future__ import annotations

from typing import Any

import torch


class NoneCompressor:
    """No compression."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor."""
        return tensor


class FP16Compressor:
    """Rounds floats to float16 and sums them in lanes of 16 bits, which halves the bytes.

    Results have the original dtype.

    Attributes:
        precision: of the lanes (docs/lanes.md).
    """

    precision = "int16"

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return floats as float16, and their dtype."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return a tensor in its original dtype."""
        return tensor.to(ctx)


class Compression:
    """The values of the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
