# SPDX-License-Identifier: Apache-2.0
"""Lanes in machine code: byte for byte those of the specification."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from p4reduce.machine_code import native_library
from p4reduce.reference.codec import ReferenceCodec
from p4reduce.session.lane_codec import Codec
from p4reduce.tensors import plans
from p4reduce.tensors.measure import BlockTables, block_exponents, exponent_of
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.format import Format
from p4reduce.wire.frames import FrameBuffer

LIBRARY = native_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="there is no machine code here")

Array = npt.NDArray[Any]
BLOCKS = 6
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0 + 2.0**-23, 3.0 * 2.0**-24]
FLOATS = [np.float16, np.float32, np.float64]
CASES = [
    *((dtype, None) for dtype in (np.int8, np.int16, np.int32, *FLOATS)),
    *((dtype, precision) for dtype in FLOATS for precision in ("int16", "int8", "int4")),
    (np.int8, "int4"),
]


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def hard_numbers(dtype: type, count: int, rng: np.random.Generator) -> Array:
    """Numbers of all magnitudes, ties of rounding, subnormal ones, both zeros, and the extremes."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
    width = {np.float16: np.uint16, np.float32: np.uint32, np.float64: np.uint64}[dtype]
    bits = rng.integers(0, np.iinfo(width).max, count, width, endpoint=True)
    numbers = bits.view(dtype)
    numbers[~np.isfinite(numbers)] = 1
    if dtype is np.float64:  # which have to keep to the range of float32
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = np.where(np.abs(numbers) < 2.0**127, numbers, np.float64(2.0) ** -1000)
    largest = np.finfo(np.float32 if dtype is np.float64 else dtype).max
    special = np.array([*EDGES, largest, -largest, np.finfo(dtype).smallest_subnormal], dtype)
    which = rng.random(count)
    numbers = np.where(which < 0.3, rng.standard_normal(count), numbers).astype(dtype)
    numbers = np.where(which > 0.8, rng.choice(special, count), numbers).astype(dtype)
    # Ties: odd multiples of half a lane's unit, in blocks whose exponent is that of 1.0.
    tied = slice(count // 2, count // 2 + count // 4)
    ties = rng.integers(-(1 << 10), 1 << 10, count // 4) * 2 + 1
    numbers[tied] = np.ldexp(ties.astype(dtype), -30 if dtype is not np.float16 else -11)
    numbers[tied.start] = 1
    return numbers


class Pair:
    """The same collective for both codecs, each with frames of its own."""

    def __init__(
        self,
        dtype: type,
        precision: str | None,
        rng: np.random.Generator,
        op: Operation,
        world: int,
    ) -> None:
        self.rng = rng
        lanes = Format.INT32
        for name in ("int16", "int8", "int4"):
            if name == (precision or np.dtype(dtype).name):
                lanes = Format[name.upper()]
        self.lanes = lanes
        size = BLOCKS * lanes.lanes - int(rng.integers(0, lanes.lanes))
        self.array = hard_numbers(dtype, size, rng)
        if dtype is np.int8 and lanes is Format.INT4:
            self.array = self.array % 15 - 7
        self.outs = [np.full_like(self.array, 7) for _ in range(2)]
        self.residuals = [np.zeros_like(self.array) for _ in range(2)]
        self.collectives = [self._collective(n, op, precision, world) for n in range(2)]
        self.frames = [FrameBuffer(BLOCKS) for _ in range(2)]
        assert LIBRARY is not None
        self.codecs = [
            ReferenceCodec(self.collectives[0], world, self.frames[0]),
            Codec(LIBRARY, self.collectives[1], world, self.frames[1]),
        ]

    def _collective(
        self, number: int, op: Operation, precision: str | None, world: int
    ) -> Collective:
        floats = self.array.dtype.kind == "f" and self.lanes is not Format.INT32
        plan = plans.allreduce(
            self.array,
            op,
            None,
            self.outs[number],
            precision,
            5,
            self.residuals[number] if floats else None,
            world_size=world,
        )
        assert plan.lane_format is self.lanes
        return Collective(
            plan.call,
            plan.source,
            plan.target,
            sequence=3,
            slots=4,
            timeout=1.0,
            lane_format=plan.lane_format,
            noise=plan.noise(1, 3),
        )

    def encode(self, blocks: Array, exponents: npt.NDArray[np.uint8], rows: Array) -> Array:
        """Fill frames with both, compare them, and return the payloads."""
        for collective, out in zip(self.collectives, self.outs, strict=True):
            if collective.residual is not None:
                out[:] = self.array  # which is summed in place, and was decoded into before
        with np.errstate(over="ignore"):
            for codec in self.codecs:
                codec.encode(blocks, exponents, rows)
        reference, native = (frames.payload[rows] for frames in self.frames)
        assert np.array_equal(reference, native)
        assert np.array_equal(*self.residuals, equal_nan=True)
        return native

    def decode(self, blocks: Array, exponents: npt.NDArray[np.uint8], rows: Array) -> None:
        """Read random sums with both, and compare the outputs."""
        sums = self.rng.integers(0, 256, (BLOCKS, 1024), np.uint8, endpoint=False)
        sums[:, :16] = np.frombuffer(
            b"\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff" + bytes(4), np.uint8
        )
        for frames in self.frames:
            frames.payload[:] = sums
        with np.errstate(over="ignore"):
            for codec in self.codecs:
                codec.decode(blocks, exponents, rows)
        reference, native = (out.view(np.uint8) for out in self.outs)
        assert np.array_equal(reference, native)


@pytest.mark.parametrize("op", [Operation.SUM, Operation.MEAN])
@pytest.mark.parametrize("world", [1, 3, 8, 63, 4096])
@pytest.mark.parametrize(("dtype", "precision"), CASES)
def test_lanes_are_those_of_the_specification(
    dtype: type, precision: str | None, world: int, op: Operation, rng: np.random.Generator
) -> None:
    if np.issubdtype(dtype, np.integer) and op is Operation.MEAN:
        pytest.skip("integers have no mean")
    world = min(world, {"int8": 40, "int4": 7}.get(precision or "", world))
    pair = Pair(dtype, precision, rng, op, world)
    own = pair.collectives[0].exponents
    assert np.array_equal(own, pair.collectives[1].exponents)
    for _ in range(2):
        count = int(rng.integers(1, BLOCKS + 1))
        blocks = rng.permutation(BLOCKS)[:count]
        rows = np.sort(rng.permutation(BLOCKS)[:count])  # as they come in
        above = rng.integers(0, 3, count) * rng.integers(0, 40, count)
        agreed = np.minimum(own[blocks] + above, 254).astype(np.uint8)
        pair.encode(blocks, agreed, rows)
        # Sums come with any exponent, from tiny to beyond what the output can hold.
        pair.decode(blocks, rng.integers(0, 255, count).astype(np.uint8), rows)


def test_what_a_block_becomes_does_not_depend_on_the_others(rng: np.random.Generator) -> None:
    """Beside a block of tiny numbers, which takes another way, and without it; by both codecs."""
    pair = Pair(np.float32, "int8", rng, Operation.SUM, 3)
    pair.array[:] = np.clip(pair.array, -1, 1)
    pair.array[: Format.INT8.lanes] *= np.float32(2.0**-120)
    blocks = np.arange(BLOCKS)
    exponents = np.array([127 - 120, *[127] * (BLOCKS - 1)], np.uint8)
    together = pair.encode(blocks, exponents, blocks)
    alone = pair.encode(blocks[1:], exponents[1:], blocks[1:])
    assert np.array_equal(together[1:], alone)


def test_every_float16() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    tables = BlockTables(len(finite))
    block_exponents(finite[:, None].copy(), tables)
    assert tables.exponents[:-1].tolist() == [exponent_of([number]) for number in finite.tolist()]
    assert np.array_equal(tables.nonzero, finite != 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, *FLOATS])
def test_exponents_are_those_of_the_specification(dtype: type, rng: np.random.Generator) -> None:
    floats = np.issubdtype(dtype, np.floating)
    for width in (1, 3, 256):
        rows = hard_numbers(dtype, 200 * width, rng).reshape(200, width)
        rows[rng.random(200) < 0.3] = 0
        if floats:
            rows[rng.random(200) < 0.1] *= np.asarray(0.0, dtype)  # of both signs
            for value in (np.nan, np.inf, -np.inf):
                rows[rng.integers(200), rng.integers(width)] = value
        tables = BlockTables(200)
        tables.exponents[:-1], tables.nonzero[:] = 77, True
        block_exponents(rows, tables)
        expected = [exponent_of(row) if floats else 0 for row in rows.tolist()]
        assert tables.exponents.tolist() == [*expected, 0]
        assert np.array_equal(tables.nonzero, (rows != 0).any(axis=1))


def test_half_precision_sums_round_and_overflow_as_in_numpy(rng: np.random.Generator) -> None:
    """All lanes that matter: around each float16, and beyond the largest."""
    pair = Pair(np.float16, None, rng, Operation.SUM, 2)
    for exponent in (100, 112, 113, 120, 127, 141, 142, 150, 200):
        blocks = np.arange(BLOCKS)
        pair.decode(blocks, np.full(BLOCKS, exponent, np.uint8), blocks)


@pytest.mark.parametrize("op", [Operation.SUM, Operation.MEAN])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_sum_that_a_link_has_rounded_becomes_the_same_numbers(
    dtype: type, op: Operation, rng: np.random.Generator
) -> None:
    """Subnormal ones and means too: one codec has the sums, the other what UDP leaves of them."""
    pair, blocks = Pair(dtype, None, rng, op, 3), np.arange(BLOCKS)
    for _ in range(20):
        exponents = rng.integers(0, 255, BLOCKS).astype(np.uint8)
        sums = rng.integers(-(2**31), 2**31 - 64, (BLOCKS, 256)) >> rng.integers(
            0, 31, (BLOCKS, 256)
        )
        rounded = sums.astype(np.float32).astype(np.int64)
        for lanes in ((sums, rounded), (rounded, sums)):
            for frames, codec, own in zip(pair.frames, pair.codecs, lanes, strict=True):
                frames.payload[:] = own.astype(">i4").view(np.uint8)
                with np.errstate(over="ignore"):
                    codec.decode(blocks, exponents, blocks)
            assert np.array_equal(*(out.view(np.uint8) for out in pair.outs))
