# SPDX-License-Identifier: Apache-2.0
"""Narrow lanes by torch's operations: bit for bit what the plain specification says."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from p4reduce.reference.numbers import as_float32, power, rounded_at_random
from p4reduce.tensors.measure import exponent_of
from p4reduce.tensors.noise import Noise
from p4reduce.tensors.quantise import FLOAT32_SCALES_FROM
from p4reduce.wire.format import NONFINITE_EXPONENT, Format
from torch_system import Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

BLOCKS = 8
BYTES = {"torch.float64": 8, "torch.float32": 4, "torch.bfloat16": 2, "torch.float16": 2}
NARROW = (Format.INT16, Format.INT8, Format.INT4)


def drawn(lane_format: Format, seed: int) -> np.ndarray:
    """Blocks of all magnitudes, the first of subnormal ones, the second of zeros."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((BLOCKS, lane_format.lanes)).astype(np.float32)
    rows *= np.exp2(draw.integers(-120, 120, (BLOCKS, 1))).astype(np.float32)
    rows[0] *= np.float32(1e-42) / abs(rows[0]).max()
    rows[1] = 0
    return rows


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("lane_format", NARROW)
def test_as_the_specification(lane_format: Format, ranks: int) -> None:
    from p4reduce.torch.narrow import NarrowLanes, block_exponents

    seed = random.randrange(1 << 30)
    print("seed", seed)
    rows = drawn(lane_format, seed)
    own = np.array([exponent_of(row) for row in rows.tolist()], np.uint8)
    assert block_exponents(torch.from_numpy(rows)).numpy().tolist() == own.tolist()

    agreed = own.copy()
    agreed[-1] += 3  # another rank's is larger
    noise = Noise(seed, 0, 1)
    lanes = NarrowLanes(lane_format, ranks, agreed, noise, torch.device("cpu"))
    encoded = lanes.encode(torch.from_numpy(rows))
    left = lanes.left(torch.from_numpy(rows), encoded).numpy()
    for blocks in (slice(0, 3), slice(3, BLOCKS)):
        piece = torch.from_numpy(rows[blocks])
        assert (lanes.encode(piece, blocks) == encoded[blocks]).all()
        assert (lanes.left(piece, encoded[blocks], blocks).numpy() == left[blocks]).all()
    sums = encoded.to(torch.int32) * ranks
    means = lanes.decode(sums).numpy()
    limit = lane_format.lane_maximum // ranks
    numbers = noise.rows(np.arange(BLOCKS), lane_format.lanes).tolist()
    for block, exponent in enumerate(agreed.tolist()):
        row = rows[block].tolist()
        wanted = [
            rounded_at_random(number, exponent, limit, some)
            for number, some in zip(row, numbers[block], strict=True)
        ]
        assert encoded[block].tolist() == wanted
        unit, half, divisor = power(exponent) / limit, power(exponent) / 2, limit * ranks / 2
        rest = [as_float32(x - q * unit) for x, q in zip(row, wanted, strict=True)]
        assert left[block].tolist() == rest
        if exponent < FLOAT32_SCALES_FROM:
            mean = [as_float32(q * ranks * (half / divisor)) for q in wanted]
        else:
            mean = [as_float32(as_float32(q * ranks / divisor) * half) for q in wanted]
        assert means[block].tolist() == mean


def test_numbers_that_are_not_finite() -> None:
    """Such a block is NaN on all ranks, and leaves its finite numbers for the next step."""
    from p4reduce.torch.narrow import NarrowLanes, block_exponents, to_rows

    lanes = Format.INT8.lanes
    numbers = torch.arange(3 * lanes - 5, dtype=torch.bfloat16)
    numbers[lanes + 3], numbers[lanes + 4] = torch.inf, torch.nan
    rows = to_rows(numbers, Format.INT8)
    exponents = block_exponents(rows).numpy()
    assert (exponents == NONFINITE_EXPONENT).tolist() == [False, True, False]
    narrow = NarrowLanes(Format.INT8, 2, exponents, Noise(1, 0, 0), torch.device("cpu"))
    encoded = narrow.encode(rows)
    assert not encoded[1].any()
    assert encoded[2, -5:].tolist() == [0] * 5
    means = narrow.decode(encoded.to(torch.int16) * 2)
    assert means.isnan().all(dim=1).tolist() == [False, True, False]
    left = narrow.left(rows, encoded)
    assert left.isfinite().all()
    assert left[1, :3].tolist() == rows[1, :3].tolist()
    assert left[1, 3:5].tolist() == [0, 0]


@pytest.mark.fake_device
@pytest.mark.timeout(300)
@pytest.mark.parametrize("on_device", [2, 1])
def test_hooks_round_on_the_device(on_device: int, system: TorchSystem, tmp_path: Path) -> None:
    """Lanes are copied, and no floats; with feedback, errors do not add up over three steps.

    If one rank has no device, the other one copies floats, and both round on the host.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    ended = Ranks(system, 2, ["narrow.py", str(seed), str(on_device)], tmp_path).wait()
    all_well(ended)
    for record in [one for one in ended[0].records if "topk" in one]:
        # bfloat16 has 8 bits; what a step leaves out comes with a later one.
        if on_device == 2:
            assert record["off"] < (1e-4 if record["topk"] == "torch.float32" else 0.4), record
        assert record["share"] < 0.27, record
        assert record["copied"] < (1.1 if on_device == 2 else BYTES[record["topk"]] + 0.1), record
    by_hook = {one["hook"]: one for one in ended[0].records if "hook" in one}
    whole = by_hook.pop("allreduce_hook")
    assert whole["off"] < 1e-6
    assert whole["copied"] == pytest.approx(4)
    rounded = [one for one in ended[0].records if one.get("hook") in by_hook]
    for record in rounded:
        bits = int(record["hook"].removeprefix("int").removesuffix("_hook"))
        # A lane's unit is the next power of two above 5 deviations, by what a lane holds.
        assert record["off"] < 8 / (2 ** (bits - 1) // 2) + 0.05, record
        assert record["zeros"] == 0, record
        copied = BYTES[record["dtype"]]
        if on_device == 2 and record["dtype"] != "torch.float64":
            copied = max(bits, 8) / 8
        assert record["copied"] == pytest.approx(copied, rel=0.03), record
    assert len(rounded) == 12
