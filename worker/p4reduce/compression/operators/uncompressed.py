# SPDX-License-Identifier: Apache-2.0
"""The whole gradient: "none", and "int16", "int8" and "int4" in narrow lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.registry import Settings, register


@dataclass
class Uncompressed(Compressor):
    """Sends everything: exact with 32-bit lanes, rounded stochastically with narrow ones."""

    biased: ClassVar[bool] = False

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        return Selected(None, 1.0)


@register("none")
def _none(given: Settings) -> Compressor:
    given.takes_no_argument()
    return Uncompressed(**given.common)


@register("int16")
def _int16(given: Settings) -> Compressor:
    return _narrow(given, 16)


@register("int8")
def _int8(given: Settings) -> Compressor:
    return _narrow(given, 8)


@register("int4")
def _int4(given: Settings) -> Compressor:
    return _narrow(given, 4)


def _narrow(given: Settings, lane_bits: int) -> Compressor:
    given.takes_no_argument()
    if given.lane_bits != 32:
        raise ValueError(f"{given.name} names its lanes already")
    return Uncompressed(**{**given.common, "lane_bits": lane_bits})
