# SPDX-License-Identifier: Apache-2.0
"""What becomes of a tensor before it is sent, and is undone afterwards."""

from __future__ import annotations

from typing import Any

import torch


class NoneCompressor:
    """Nothing."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor."""
        return tensor


class FP16Compressor:
    """Floats are rounded to float16 and summed in lanes of 16 bits: half the bytes.

    They come back in the dtype that they had.

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
        """Return a tensor in the dtype that it had."""
        return tensor.to(ctx)


class Compression:
    """What `DistributedOptimizer` and `allreduce` take as `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
