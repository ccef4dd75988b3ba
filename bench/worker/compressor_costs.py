# SPDX-License-Identifier: Apache-2.0
"""Processor time per number of each compressor, beside the all-reduce itself.

OPENBLAS_NUM_THREADS=1 python -m bench.worker.compressor_costs [--elements 4194304] [--repeat 7]

A step of a compressor is `propose`, `compress` and `decompress`; no frame is sent. Medians of
interleaved runs, after two steps that fill residuals. "BLAS" is what the matrix products of a step
take by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.compression import compressor_by_name

from bench.worker.costs import nanoseconds, read_options

_RANKS = 4
_SIDE = 1024  # rows and columns of the matrices that PowerSGD factors
_NAMES = (
    "none",
    "topk:0.01",
    "mstopk:0.01",
    "randomk:0.01",
    "threshold:3",
    "cat",
    "cat/int8",
    "cat:own",
    "cat:level",
    "cat:paper",
    "cat:signs",
    "cat:stochastic",
    "powersgd:4",
    "powersgd:4/int8",
    "gradiveq:16",
)
Array = npt.NDArray[Any]


def gradients(elements: int, count: int = 4) -> list[Array]:
    """Gradients whose blocks differ in size, as those of layers do."""
    random = np.random.default_rng(1)
    scale = np.exp(random.standard_normal(-(-elements // 256))).repeat(256)[:elements]
    return [(random.standard_normal(elements) * scale).astype(np.float32) for _ in range(count)]


def step_of(name: str, given: list[Array]) -> Callable[[], float]:
    """Return what does a step of a compressor, and returns its seconds of processor time."""
    compressor = compressor_by_name(name, _RANKS)
    elements = given[0].size
    shapes = [(_SIDE, _SIDE)] * (elements // _SIDE**2)
    compressor.describe("tensor", [*shapes, (elements - sum(_SIDE**2 for _ in shapes),)])
    turn = 0

    def step() -> float:
        nonlocal turn
        gradient = given[turn % len(given)]
        turn += 1
        begin = time.process_time()
        wanted = compressor.propose("tensor", gradient)
        took = time.process_time() - begin
        agreed = None if wanted is None else wanted * np.float32(_RANKS)
        begin = time.process_time()
        sent = compressor.compress("tensor", gradient, agreed)
        took += time.process_time() - begin
        total = sent.values.copy()
        begin = time.process_time()
        compressor.decompress("tensor", total)
        return took + time.process_time() - begin

    return step


def products_of(name: str, elements: int) -> Callable[[], float] | None:
    """Return what does a step's matrix products alone; None: it has none."""
    method, _, argument = name.partition("/")[0].partition(":")
    random = np.random.default_rng(2)
    if method == "powersgd":
        count, rank = elements // _SIDE**2, int(argument)
        matrices = random.standard_normal((count, _SIDE, _SIDE)).astype(np.float32)
        thin = random.standard_normal((_SIDE, rank)).astype(np.float32)

        def factors() -> float:
            begin = time.process_time()
            for matrix in matrices:
                left = matrix @ thin
                right = matrix.T @ left
                np.matmul(left, right.T, out=matrix)  # what is sent, and what has come
                np.matmul(left, right.T, out=matrix)
            took = time.process_time() - begin
            matrices[:] = 1
            return took

        return factors
    if method == "gradiveq":
        slices = random.standard_normal((elements // 256, 256))
        basis = np.linalg.qr(random.standard_normal((256, int(argument))))[0]
        out = np.empty_like(slices)

        def projections() -> float:
            begin = time.process_time()
            projected = slices @ basis
            np.matmul(projected, basis.T, out=out)
            np.matmul(projected, basis.T, out=out)
            return time.process_time() - begin

        return projections
    return None


def main() -> None:
    given = read_options(__doc__)
    some = gradients(given.elements)
    steps = {name: step_of(name, some) for name in _NAMES}
    products = {
        f"{name} alone": made for name in _NAMES if (made := products_of(name, given.elements))
    }
    found = nanoseconds({**steps, **products}, given)
    print("| compressor | ns per number | of it BLAS |\n| --- | --- | --- |")
    for name in steps:
        blas = found.get(f"{name} alone")
        print(f"| `{name}` | {found[name]:.1f} | {'–' if blas is None else f'{blas:.1f}'} |")


if __name__ == "__main__":
    main()
