# SPDX-License-Identifier: Apache-2.0
"""The tables that machine code scales numbers by stay where it was told that they are."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from p4reduce.tensors import native_stream
from p4reduce.tensors.blocks import Blocks
from p4reduce.tensors.native_stream import codec_structure
from p4reduce.tensors.stochastic import factors_at_random
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Call, Operation
from p4reduce.wire.format import Format

WORLD = 61  # no other test has as many ranks
PATIENCE = 60.0  # seconds for the other thread


def test_threads_that_need_the_same_tables_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads of one process begin their first collective together.

    If each kept tables of its own, one set would be freed while machine code reads it.
    """
    both = threading.Barrier(2)

    def together(*kind: Any) -> Any:
        both.wait(PATIENCE)
        return factors_at_random.__wrapped__(*kind)

    monkeypatch.setattr(native_stream, "factors_at_random", together)
    numbers = Blocks(np.ones(300), Format.INT16.lanes)

    def tables(rank: int) -> Any:
        call = Call("allreduce", "float64", 300, Operation.SUM)
        one = Collective(
            call, numbers, numbers, sequence=rank, slots=1, timeout=9.0, lane_format=Format.INT16
        )
        return codec_structure(one, WORLD)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(tables, range(2))
    assert first.scales == second.scales
    assert first.factors32 == second.factors32
    there = (ctypes.c_double * 255).from_address(first.scales)
    right = factors_at_random(Format.INT16, WORLD, mean=False).scales[:255]
    assert np.array_equal(np.frombuffer(there), right)
