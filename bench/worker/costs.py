# SPDX-License-Identifier: Apache-2.0
"""Processor time per number of what a rank computes: interleaved runs, medians, nanoseconds.

    python -m bench.worker.costs --of lanes
    OPENBLAS_NUM_THREADS=1 python -m bench.worker.costs --of compressors
    OMP_NUM_THREADS=1 p4reduce-lab exec -n 1 -- python -m bench.worker.costs --of hooks
    python -m bench.worker.costs --of exponents
    python -m bench.worker.costs --of sums --elements 8000000

- lanes: to measure and encode a tensor, with and without feedback. No frame is sent.
- compressors: a step is `propose`, `compress` and `decompress`; no frame is sent. "BLAS" is what
  the matrix products of a step take by themselves.
- hooks: of DDP, all threads of a rank, with its all-reduces. The job has one rank, so nothing waits
  for others. `allreduce_hook` is what float32 costs without a hook.
- exponents: those of an input's blocks, which are found before the first frame, by its MB.
- sums: by one rank at a switch in shared memory, for `p4reduce_lab.planning.home`. What a block
  takes is told from what a number takes by comparing with float32, whose numbers take
  `PREPARE_SECONDS` (exponents). The least counts there, as load slows the others.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
import p4reduce_lab
from p4reduce.compression import compressor_by_name
from p4reduce.machine_code import Library, native_library
from p4reduce.session.lane_codec import Codec
from p4reduce.tensors import plans
from p4reduce.tensors.precision import PRECISIONS
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer
from p4reduce_lab.planning.schemes import PREPARE_SECONDS

from bench.measure import in_turns
from bench.program import Option, Row, read_options, run, tell

_FILLING = 2  # rounds that fill residuals, and do not count
_RANKS = {"lanes": 3, "compressors": 4}
_SIDE = 1024  # rows and columns of the matrices that PowerSGD factors
_AT_A_TIME = 64  # blocks
_COMPRESSORS = (
    "none", "topk:0.01", "mstopk:0.01", "randomk:0.01", "threshold:3", "cat", "cat/int8",
    "cat:own", "cat:level", "cat:paper", "cat:signs", "cat:stochastic", "powersgd:4",
    "powersgd:4/int8", "gradiveq:16",
)  # fmt: skip
_HOOKS: dict[str, dict[str, Any]] = {
    "allreduce_hook": {}, "int16_hook": {}, "int8_hook": {},
    "int8_hook, feedback": {"error_feedback": True}, "int4_hook": {}, "topk_hook": {},
    "elements_hook": {}, "hierarchical_hook": {}, "majority_hook": {}, "onebit_hook": {},
    "cat_hook": {}, "compressed_hook, powersgd:4/int8": {"compressor": "powersgd:4/int8"},
    "deadline_hook": {"deadline": 60.0},
}  # fmt: skip
_SUMS = {"float32": "int32", "int16": "int16", "int8": "int8", "int8 with feedback": "int8"}

Array = npt.NDArray[Any]
Case = Callable[[], float]
"""Runs once, and returns seconds of processor time."""


def processor(call: Callable[[], object]) -> float:
    """Return the seconds of processor time that a call takes."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def nanoseconds(
    cases: Mapping[str, Case], options: argparse.Namespace, typical: Any = statistics.median
) -> dict[str, float]:
    """Return each case's nanoseconds per number."""
    found = in_turns(cases, options.repeat, warm_up=_FILLING)
    return {name: 1e9 * typical(times) / options.elements for name, times in found.items()}


def rows(found: dict[str, float]) -> list[Row]:
    """A row for each case."""
    return [{"name": name, "ns_per_number": ns} for name, ns in found.items()]


def normal(elements: int, seed: int = 1) -> Array:
    """Numbers of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


def collective(array: Array, out: Array, precision: str | None, residual: Any) -> Collective:
    """A sum that is about to begin, with the exponents of its blocks."""
    plan = plans.allreduce(
        array, Operation.MEAN, None, out, precision, 1, residual, world_size=_RANKS["lanes"]
    )
    return Collective(
        plan.call,
        plan.source,
        plan.target,
        sequence=0,
        slots=128,
        timeout=60.0,
        lane_format=plan.lane_format,
        noise=plan.noise(0, 0),
    )


def of_lanes(options: argparse.Namespace) -> list[Row]:
    """Measuring and encoding."""
    library = native_library()
    if library is None:
        raise SystemExit("there is no machine code here: nothing to measure")
    original = normal(options.elements)
    residual = np.zeros_like(original)

    def case(precision: str | None, kept: Any) -> float:
        array = original.copy()
        return processor(lambda: encode(library, array, precision, kept))

    cases = {"int32": partial(case, None, None)}
    for name in ("int16", "int8", "int4"):
        cases[name] = partial(case, name, None)
        cases[f"{name}, residual"] = partial(case, name, residual)
    return rows(nanoseconds(cases, options))


def encode(library: Library, array: Array, precision: str | None, residual: Any) -> None:
    """Encode one tensor, in place."""
    one = collective(array, array, precision, residual)
    codec = Codec(library, one, _RANKS["lanes"], FrameBuffer(_AT_A_TIME))
    places = np.arange(_AT_A_TIME)
    for first in range(0, one.count, _AT_A_TIME):
        blocks = np.arange(first, min(first + _AT_A_TIME, one.count))
        codec.encode(blocks, one.exponents[blocks], places[: len(blocks)])


def of_compressors(options: argparse.Namespace) -> Iterator[Row]:
    """A step of each compressor, of gradients whose blocks differ in size, as layers' do."""
    random = np.random.default_rng(1)
    scale = np.exp(random.standard_normal(-(-options.elements // 256))).repeat(256)
    gradients = [
        (random.standard_normal(options.elements) * scale[: options.elements]).astype(np.float32)
        for _ in range(4)
    ]
    cases = {name: step_of(name, gradients) for name in _COMPRESSORS}
    for name in _COMPRESSORS:
        if products := products_of(name, options.elements):
            cases[f"{name} alone"] = products
    found = nanoseconds(cases, options)
    for name in _COMPRESSORS:
        blas = found.get(f"{name} alone")
        yield {"name": name, "ns_per_number": found[name], "of_it_blas_ns": blas}


def step_of(name: str, gradients: list[Array]) -> Case:
    """Return what does a step of a compressor."""
    compressor = compressor_by_name(name, _RANKS["compressors"])
    elements = gradients[0].size
    shapes = [(_SIDE, _SIDE)] * (elements // _SIDE**2)
    compressor.describe("tensor", [*shapes, (elements - len(shapes) * _SIDE**2,)])
    turns = itertools.cycle(gradients)

    def step() -> float:
        gradient = next(turns)
        begin = time.process_time()
        wanted = compressor.propose("tensor", gradient)
        took = time.process_time() - begin
        agreed = None if wanted is None else wanted * np.float32(_RANKS["compressors"])
        begin = time.process_time()
        sent = compressor.compress("tensor", gradient, agreed)
        took += time.process_time() - begin
        total = sent.values.copy()
        return took + processor(lambda: compressor.decompress("tensor", total))

    return step


def products_of(name: str, elements: int) -> Case | None:
    """Return what does a step's matrix products alone; None: it has none."""
    method, _, argument = name.partition("/")[0].partition(":")
    random = np.random.default_rng(2)
    if method == "powersgd":
        thin = random.standard_normal((_SIDE, int(argument))).astype(np.float32)
        matrices = random.standard_normal((elements // _SIDE**2, _SIDE, _SIDE)).astype(np.float32)

        def products() -> None:
            for matrix in matrices:
                left = matrix @ thin
                right = matrix.T @ left
                np.matmul(left, right.T, out=matrix)  # what is sent, and what has come
                np.matmul(left, right.T, out=matrix)

        def fresh() -> float:
            matrices[:] = 1
            return processor(products)

        return fresh
    if method == "gradiveq":
        slices = random.standard_normal((elements // 256, 256))
        basis = np.linalg.qr(random.standard_normal((256, int(argument))))[0]
        out = np.empty_like(slices)

        def projections() -> None:
            projected = slices @ basis
            np.matmul(projected, basis.T, out=out)
            np.matmul(projected, basis.T, out=out)

        return partial(processor, projections)
    return None


def of_hooks(options: argparse.Namespace) -> list[Row]:
    """Each DDP hook."""
    import torch
    from p4reduce.torch import hooks

    gradients = [torch.from_numpy(normal(options.elements, seed)) for seed in range(3)]

    def case(name: str, given: dict[str, Any], comm: p4reduce.Communicator) -> Case:
        state = hooks.HookState(comm, seed=1, **given)
        tensor = torch.empty(options.elements)
        whole = len(tensor) - len(tensor) % _SIDE**2
        parts = [*tensor[:whole].view(-1, _SIDE, _SIDE), tensor[whole:]]
        # What a hook asks of DDP's bucket.
        answers = {"buffer": tensor, "parameters": parts, "index": 0, "is_last": True}
        bucket = SimpleNamespace(
            **{name: lambda answer=answer: answer for name, answer in answers.items()}
        )
        hook: Any = getattr(hooks, name.partition(",")[0])
        turns = itertools.cycle(gradients)

        def once() -> float:
            tensor.copy_(next(turns))
            return processor(lambda: hook(state, bucket).wait())

        return once

    with p4reduce.init(timeout=120.0) as comm:
        cases = {name: case(name, given, comm) for name, given in _HOOKS.items()}
        return rows(nanoseconds(cases, options))


def of_exponents(options: argparse.Namespace) -> Iterator[Row]:
    """What comes before the first frame."""
    for megabytes in (1, 4, 16, 32):
        array = normal(megabytes << 18)
        out = np.empty_like(array)
        call = partial(collective, array, out, None, None)
        took = statistics.median(processor(call) for _ in range(4 * options.repeat))
        ns = 1e9 * took / array.size
        yield {"name": f"{megabytes} MB", "ms": 1e3 * took, "ns_per_number": ns}


def of_sums(options: argparse.Namespace) -> Iterator[Row]:
    """Sums of one rank, by lanes."""
    numbers = normal(options.elements)
    with p4reduce_lab.local(ranks=1), p4reduce.init(0, 1) as comm:

        def case(name: str) -> Case:
            kept = np.zeros_like(numbers) if "feedback" in name else None
            call = partial(comm.allreduce_async, numbers, precision=_SUMS[name], residual=kept)
            return lambda: processor(lambda: call().wait())

        found = nanoseconds({name: case(name) for name in _SUMS}, options, typical=min)
    block = (found["float32"] - 1e9 * PREPARE_SECONDS) * PRECISIONS["int32"].lanes
    for name, each in found.items():
        own = each - block / PRECISIONS[_SUMS[name]].lanes
        yield {"name": name, "ns_per_number": each, "without_blocks_ns": own}


def main() -> None:
    measures: dict[str, Callable[[argparse.Namespace], Iterable[Row]]] = {
        "lanes": of_lanes,
        "compressors": of_compressors,
        "hooks": of_hooks,
        "exponents": of_exponents,
        "sums": of_sums,
    }
    options = read_options(
        __doc__, of=Option("lanes", choices=tuple(measures)), elements=1 << 22, repeat=7
    )
    tell(options, measures[options.of](options))


if __name__ == "__main__":
    run(main)
