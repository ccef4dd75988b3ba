# SPDX-License-Identifier: Apache-2.0
"""A rank that asks for means of integers and scaled sums, and that resizes its tensors afterwards.

Prints a line of JSON for each case, with what is wrong, or nothing.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import LocalSGD, statistics
from torch.distributed import ReduceOp

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reductions(tensor: torch.Tensor, operation: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Reduce a tensor of as many rows as ranks by each collective; yield what this rank has."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one = tensor.clone()
    dist.all_reduce(one, operation)
    yield "all_reduce", one
    strided = tensor.t().contiguous().t()
    dist.all_reduce(strided, operation)
    yield "all_reduce of a strided tensor", strided
    some = [tensor.clone(), tensor.clone()]
    options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
    options.reduceOp = operation if isinstance(operation, ReduceOp) else ReduceOp(operation)
    dist.group.WORLD.allreduce_coalesced(some, options).wait()
    yield "all_reduce_coalesced", some[1]
    one = tensor.clone()
    dist.reduce(one, 0, operation)
    if rank == 0:
        yield "reduce", one
    part = torch.empty_like(tensor[:1])
    dist.reduce_scatter_tensor(part, tensor, operation)
    yield "part of reduce_scatter_tensor", part
    part = torch.empty_like(tensor[:1])
    dist.reduce_scatter(part, [row[None] for row in tensor], operation)
    yield "part of reduce_scatter", part
    assert len(tensor) == size


def compared(operation: Any, name: str, tensor: torch.Tensor, right: torch.Tensor) -> None:
    rank = dist.get_rank()
    wrong = ""
    try:
        for collective, got in reductions(tensor, operation):
            whole = right[rank : rank + 1] if collective.startswith("part") else right
            same = (
                torch.equal(got, whole)
                if not right.is_floating_point()
                else torch.allclose(
                    got.double(), whole.double(), rtol=2e-2 if right.element_size() == 2 else 1e-6
                )
            )
            if got.dtype != tensor.dtype or not same:
                wrong += f"{collective}: {got} is not {whole}; "
    except Exception as error:
        wrong += f"raises {error!r}"
    told(f"{name} of {tensor.dtype}", wrong)


def told(case: str, wrong: str) -> None:
    print(json.dumps({"case": case, "wrong": wrong}), flush=True)


def means() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in INTEGERS:
        # Sums of these leave int8, the means do not.
        every = [torch.tensor([[32, 101], [0, 90]]) + 2 * other for other in range(size)]
        if dtype != torch.uint8:
            every = [one * torch.tensor([1, -1]) for one in every]
        every = [torch.cat([one] * size)[:size].to(dtype) for one in every]
        right = torch.stack([one.long() for one in every]).sum(0) // size
        compared(ReduceOp.AVG, "AVG", every[rank], right.to(dtype))


def scaled() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for factor in (1 / 3, torch.tensor(2.5)):
        for dtype in FLOATS:
            every = [torch.arange(3.0 * size).reshape(size, 3) + 7 * n for n in range(size)]
            right = torch.stack(every).sum(0) * float(factor)
            operation = dist._make_nccl_premul_sum(factor)
            compared(operation, f"PREMUL_SUM {factor}", every[rank].to(dtype), right.to(dtype))


def refused() -> None:
    size = dist.get_world_size()
    refusals: list[tuple[str, Callable[[], Any], str]] = [
        (
            "PREMUL_SUM of integers",
            lambda: dist.all_reduce(
                torch.ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(2.0)
            ),
            "int32",
        ),
        ("an expanded all_reduce", lambda: dist.all_reduce(spread()), ".contiguous()"),
        ("an expanded MAX", lambda: dist.all_reduce(spread(), ReduceOp.MAX), ".contiguous()"),
        ("an expanded broadcast", lambda: dist.broadcast(spread(), 0), ".contiguous()"),
        ("an expanded reduce", lambda: dist.reduce(spread(), 0), ".contiguous()"),
        (
            "an expanded all_gather",
            lambda: dist.all_gather([spread() for _ in range(size)], torch.ones(4)),
            ".contiguous()",
        ),
        (
            "an expanded all_gather_into_tensor",
            lambda: dist.all_gather_into_tensor(torch.zeros(1).expand(4 * size), torch.ones(4)),
            ".contiguous()",
        ),
        (
            "an expanded reduce_scatter_tensor",
            lambda: dist.reduce_scatter_tensor(spread(), torch.ones(4 * size)),
            ".contiguous()",
        ),
        (
            "an expanded all_to_all_single",
            lambda: dist.all_to_all_single(torch.zeros(1).expand(size), torch.ones(size)),
            ".contiguous()",
        ),
        (
            "an output that does not fit",
            lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(4 * size)),
            "output has 3 elements",
        ),
    ]
    for case, call, word in refusals:
        told(case, refusal(call, word))
    # What only reads may be expanded.
    gathered = torch.empty(4 * size)
    dist.all_gather_into_tensor(gathered, torch.ones(1).expand(4))
    total = torch.ones(4)
    dist.all_reduce(total)
    told("the group after refusals", "" if total[0] == size else f"{total}")


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def refusal(call: Callable[[], Any], word: str) -> str:
    error = error_of(call)
    if error is None:
        return "no error"
    return "" if isinstance(error, ValueError) and word in str(error) else f"raises {error!r}"


def empty() -> None:
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.int64):
        for operation in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.AVG):
            some = [torch.zeros(0, dtype=dtype) for _ in range(2 * size + 2)]
            calls = [
                lambda some=some, op=operation: dist.reduce_scatter_tensor(some[0], some[1], op),
                lambda some=some, op=operation: dist.reduce_scatter(
                    some[0], some[1 : size + 1], op
                ),
                lambda some=some, op=operation: dist.all_reduce(some[0], op),
                lambda some=some: dist.all_gather(some[:size], some[-1]),
                lambda some=some: dist.all_to_all(some[:size], some[size : 2 * size]),
                lambda some=some: dist.all_to_all_single(some[0], some[1]),
            ]
            wrong = [repr(error) for call in calls if (error := error_of(call)) is not None]
            told(f"empty {dtype} {operation}", "; ".join(wrong))


def spread() -> torch.Tensor:
    return torch.zeros(1).expand(4)


def resized() -> None:
    """FSDP frees and takes again the storages of tensors that collectives had."""
    size = dist.get_world_size()
    for dtype in (*FLOATS, torch.int32, torch.int64, torch.bool):
        mine, whole = torch.ones(5).to(dtype), torch.zeros(5 * size).to(dtype)
        some = [torch.zeros(5).to(dtype) for _ in range(size)]
        dist.broadcast(mine, 0)
        dist.all_gather_into_tensor(whole, mine)
        dist.all_gather(some, mine)
        had = [mine, whole, *some]
        if dtype != torch.bool:
            dist.all_reduce(mine)
            dist.reduce(mine, 0)
            dist.reduce_scatter_tensor(mine, whole)
            dist.reduce_scatter(mine, some)
        told(f"resizing {dtype}", resizing(had))
    for dtype in (torch.float32, torch.bfloat16):
        indices, values = torch.tensor([[1, 2]]), torch.ones(2, 3, dtype=dtype)
        sparse = torch.sparse_coo_tensor(indices, values, (9, 3), check_invariants=True)
        dist.all_reduce(sparse)
        parts = [indices, values, sparse.indices(), sparse.values()]
        told(f"resizing sparse {dtype}", resizing(parts))
    model = torch.nn.Linear(3, 2)
    local = LocalSGD(torch.optim.SGD(model.parameters(), 0.1), 1, buffers=[torch.ones(3)])
    model(torch.ones(1, 3)).sum().backward()
    local.step()
    told("resizing LocalSGD's parameters", resizing([one.data for one in model.parameters()]))


def resizing(tensors: list[torch.Tensor]) -> str:
    try:
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=60))
    means()
    scaled()
    refused()
    empty()
    resized()
    counted = statistics()
    print(
        json.dumps(
            {
                "switch": {name: one.calls for name, one in counted.switch.items()},
                "gloo": {name: one.calls for name, one in counted.gloo.items()},
            }
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
