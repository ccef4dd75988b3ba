# SPDX-License-Identifier: Apache-2.0
"""A rank that runs collectives on the backend p4reduce and on Gloo, with the same inputs.

Prints a line of JSON for each case, with what is wrong with it, or nothing.
Arguments: the seed, and the share of the cases to be run.
"""

import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import p4reduce
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
        "complex64",
    )
}
OPERATIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
SHAPES = {
    "0-d": (),
    "empty": (0,),
    "one": (1,),
    "odd": (7, 11, 13),
    "column": (64, 33),  # of a larger tensor, so it is not contiguous
    "transposed": (40, 50),
    "large": (300_000,),
    "column, contiguous": (64, 33),
    "transposed, contiguous": (40, 50),
}
DRAWN = ("0-d", "empty", "one", "odd", "column", "transposed")
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
COPYING = ("broadcast", "all_gather", "all_gather_into_tensor")
OTHERS = ("gather", "scatter", "all_to_all", "all_to_all_single", "send_recv")
WAYS = ("sync", "async", "future")


@dataclass(frozen=True)
class Case:
    """What is called, with what, how and on which group."""

    collective: str
    dtype: str
    operation: str
    shape: str
    way: str
    group: str

    @property
    def name(self) -> str:
        parts = (self.collective, self.dtype, self.operation, self.shape, self.way, self.group)
        return "-".join(part for part in parts if part)


def cases(draw: random.Random) -> Iterator[Case]:
    """All of them; the shape and the way are drawn, as all of those would take hours."""
    for collective in REDUCING:
        for dtype, operation, group in itertools.product(DTYPES, OPERATIONS, ("world", "part")):
            yield Case(collective, dtype, operation, *drawn(draw, collective), group)
    for collective in (*COPYING, *OTHERS):
        for dtype, group in itertools.product(DTYPES, ("world", "part")):
            yield Case(collective, dtype, "", *drawn(draw, collective), group)
    for collective, shape, way in itertools.product(REDUCING + COPYING, (*DRAWN, "large"), WAYS):
        operation = "SUM" if collective in REDUCING else ""
        yield Case(collective, "float32", operation, shape, way, "world")


def drawn(draw: random.Random, collective: str) -> tuple[str, str]:
    return draw.choice(DRAWN), "sync" if collective == "send_recv" else draw.choice(WAYS)


def make(case: Case, seed: int, rank: int, leading: int = 0) -> torch.Tensor:
    """A rank's input: of the case's dtype and shape, with another dimension if asked for."""
    generator = np.random.default_rng((seed, rank))
    dtype = DTYPES[case.dtype]
    shape = SHAPES[case.shape]
    if leading:
        shape = (leading * (shape[0] if shape else 1), *shape[1:])
    if dtype.is_floating_point or dtype.is_complex:
        numbers = generator.normal(size=shape) * 10.0 ** generator.integers(-3, 4)
        if dtype.is_complex:
            numbers = numbers + 1j * generator.normal(size=shape)
    else:
        # Products of 8 ranks fit into int8.
        numbers = generator.integers(0 if dtype in (torch.uint8, torch.bool) else -1, 2, shape)
    tensor = torch.as_tensor(np.asarray(numbers)).to(dtype)
    return laid_out(tensor, case.shape)


def laid_out(tensor: torch.Tensor, shape: str) -> torch.Tensor:
    if shape == "column":
        wide = torch.zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
        part = wide[..., ::2]
        part.copy_(tensor)
        return part
    if shape == "transposed":
        return tensor.T.contiguous().T
    return tensor.clone()


def finish(work: Any, way: str) -> None:
    if way == "async" or (way == "future" and not hasattr(work, "get_future")):
        work.wait()  # all_reduce_coalesced gives a future
    elif way == "future":
        work.get_future().wait()


def for_gloo(case: Case) -> Case:
    """The same for Gloo, which has no int16 (but int32), and futures only of some works.

    Of tensors that are not contiguous it takes the memory as it comes, and writes past their end.
    """
    layouts = {"column": "column, contiguous", "transposed": "transposed, contiguous"}
    wider = case.operation == "SUM" or case.collective in COPYING
    if case.collective == "all_gather_into_tensor":
        layouts["0-d"] = "one"  # which is the same in the output
    return replace(
        case,
        shape=layouts.get(case.shape, case.shape),
        way="sync",
        dtype="int32" if wider and case.dtype == "int16" else case.dtype,
    )


def run(case: Case, group: Any, seed: int) -> list[torch.Tensor]:
    """Call it, and return what it wrote on this rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    options: dict[str, Any] = {"group": group, "async_op": case.way != "sync"}
    operation = getattr(ReduceOp, case.operation) if case.operation else None
    root = ranks[seed % size]
    if case.collective == "all_reduce":
        tensor = make(case, seed, rank)
        finish(dist.all_reduce(tensor, operation, **options), case.way)
        return [tensor]
    if case.collective == "all_reduce_coalesced":
        tensors = [make(case, seed + number, rank).contiguous() for number in range(3)]
        finish(dist.all_reduce_coalesced(tensors, operation, **options), case.way)
        return tensors
    if case.collective == "reduce":
        tensor = make(case, seed, rank)
        finish(dist.reduce(tensor, root, operation, **options), case.way)
        return [tensor] if dist.get_rank() == root else []
    if case.collective == "reduce_scatter":
        inputs = [make(case, seed + number, rank) for number in range(size)]
        output = torch.empty_like(inputs[rank], memory_format=torch.contiguous_format)
        finish(dist.reduce_scatter(output, inputs, operation, **options), case.way)
        return [output]
    if case.collective == "reduce_scatter_tensor":
        whole = make(case, seed, rank, size).contiguous()
        output = torch.empty((whole.shape[0] // size, *whole.shape[1:]), dtype=whole.dtype)
        finish(dist.reduce_scatter_tensor(output, whole, operation, **options), case.way)
        return [output]
    if case.collective == "broadcast":
        tensor = make(case, seed, rank)
        finish(dist.broadcast(tensor, root, **options), case.way)
        return [tensor]
    mine = make(case, seed, rank)
    if case.collective == "all_gather":
        outputs = [laid_out(torch.zeros_like(mine), case.shape) for _ in range(size)]
        finish(dist.all_gather(outputs, mine, **options), case.way)
        return outputs
    if case.collective == "all_gather_into_tensor":
        mine = mine.contiguous()
        rows = size * mine.shape[0] if mine.dim() else size
        output = torch.empty((rows, *mine.shape[1:]), dtype=mine.dtype)
        finish(dist.all_gather_into_tensor(output, mine, **options), case.way)
        return [output]
    mine = mine.contiguous()
    if case.collective == "gather":
        outputs = [torch.zeros_like(mine) for _ in range(size)]
        here = dist.get_rank() == root
        finish(dist.gather(mine, outputs if here else None, root, **options), case.way)
        return outputs
    if case.collective == "scatter":
        output = torch.zeros_like(mine)
        inputs = [make(case, seed + number, rank).contiguous() for number in range(size)]
        here = dist.get_rank() == root
        finish(dist.scatter(output, inputs if here else None, root, **options), case.way)
        return [output]
    if case.collective == "all_to_all":
        inputs = [make(case, seed + number, rank).contiguous() for number in range(size)]
        outputs = [torch.zeros_like(mine) for _ in range(size)]
        finish(dist.all_to_all(outputs, inputs, **options), case.way)
        return outputs
    if case.collective == "all_to_all_single":
        whole = make(case, seed, rank, size).contiguous()
        output = torch.zeros_like(whole)
        finish(dist.all_to_all_single(output, whole, **options), case.way)
        return [output]
    output = torch.zeros_like(mine)
    following, before = ranks[(rank + 1) % size], ranks[(rank - 1) % size]
    sending = dist.isend(mine, following, group=group)
    dist.recv(output, before, group=group)
    sending.wait()
    return [output]


def outcome(call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | Exception:
    try:
        return call()
    except Exception as error:
        return error


def difference(case: Case, ours: Any, gloos: Any, gloo: Any, seed: int) -> str:
    """What is wrong with our result, or nothing."""
    dtype = DTYPES[case.dtype]
    inexact = dtype.is_floating_point or dtype.is_complex
    if case.operation == "AVG":
        # Gloo has no mean; it is the sum, divided.
        gloos = outcome(partial(run, for_gloo(replace(case, operation="SUM")), gloo, seed))
        if not isinstance(gloos, Exception):
            mode = None if inexact else "floor"
            size = dist.get_world_size(gloo)
            gloos = [tensor.div(size, rounding_mode=mode) for tensor in gloos]
    if isinstance(ours, Exception):
        if case.dtype == "int16" and "Invalid scalar type" in str(ours):
            return ""  # delegated to Gloo, as the group has no job
        return "" if isinstance(gloos, Exception) else f"raises {ours!r}, Gloo does not"
    if isinstance(gloos, Exception):
        return f"no error, where Gloo has {gloos!r}"
    # Complex tensors are seen as floats by torch itself.
    approximate = inexact and case.operation in ("SUM", "AVG")
    for mine, theirs in zip(ours, gloos, strict=True):
        if mine.shape != theirs.shape or mine.dtype != dtype:
            return f"{mine.dtype} {mine.shape}, where Gloo has {theirs.dtype} {theirs.shape}"
        theirs = theirs.to(dtype)
        if not approximate:
            if not torch.equal(mine, theirs):
                return f"{mine} is not Gloo's {theirs}"
        elif mine.numel():
            size = dist.get_world_size(gloo)
            op = p4reduce.MEAN if case.operation == "AVG" else p4reduce.SUM
            bound = p4reduce.error_bound(largest_of(case, seed, size), size, op=op)
            # Gloo's own rounding after each addition, and ours of the result.
            unit = torch.finfo(dtype).eps * largest_of(case, seed, size) * size
            worst = (mine.cdouble() - theirs.cdouble()).abs().max().item()
            if not worst <= bound + 2 * unit:
                return f"off by {worst}, where {bound + 2 * unit} is possible"
    return ""


def largest_of(case: Case, seed: int, size: int) -> float:
    """A bound on the magnitudes of all inputs."""
    return max(
        float(make(case, seed + number, rank, leading).abs().max())
        for rank in range(size)
        for number in range(max(size, 3))
        for leading in (0, size)
    )


def main() -> None:
    seed, share = int(sys.argv[1]), float(sys.argv[2])
    dist.init_process_group("p4reduce")
    rank, world = dist.get_rank(), dist.get_world_size()
    part = [0, world - 1]
    groups = {
        "world": (dist.group.WORLD, dist.new_group(backend="gloo")),
        "part": (dist.new_group(part), dist.new_group(part, backend="gloo")),
    }
    draw = random.Random(seed)
    seen: set[str] = set()
    for number, case in enumerate(cases(draw)):
        # Each collective once in any case, by the way that the switch knows.
        plain = case.dtype == "float32" and case.operation in ("", "SUM") and case.group == "world"
        first = plain and case.collective not in seen
        if first:
            seen.add(case.collective)
        if (draw.random() >= share and not first) or (case.group == "part" and rank not in part):
            continue
        group, gloo = groups[case.group]
        ours = outcome(partial(run, case, group, seed + number))
        gloos = outcome(partial(run, for_gloo(case), gloo, seed + number))
        wrong = difference(case, ours, gloos, gloo, seed + number)
        if case.operation == "SUM" and case.dtype == "float32" and not wrong:
            wrong = differing(case, ours, gloo)
        print(json.dumps({"case": case.name, "wrong": wrong}), flush=True)
    from p4reduce.torch import statistics

    counted = statistics()
    switch = {key: tally.calls for key, tally in counted.switch.items()}
    gloo_calls = {key: tally.calls for key, tally in counted.gloo.items()}
    print(json.dumps({"switch": switch, "gloo": gloo_calls}), flush=True)
    dist.destroy_process_group()


def differing(case: Case, ours: Any, gloo: Any) -> str:
    """Whether ranks have different bits, where all have the same sums."""
    if not case.collective.startswith("all_reduce"):
        return ""
    for tensor in ours:
        bits = tensor.contiguous().view(torch.int32)
        everybody = [torch.empty_like(bits) for _ in range(dist.get_world_size(gloo))]
        dist.all_gather(everybody, bits, group=gloo)
        if not all(torch.equal(one, bits) for one in everybody):
            return "the ranks' results differ"
    return ""


if __name__ == "__main__":
    if int(os.environ["RANK"]) == 0:
        print(f"seed {sys.argv[1]}", file=sys.stderr)
    main()
