# SPDX-License-Identifier: Apache-2.0
"""Collectives of a fake accelerator's tensors and of the host's, in a random order.

Arguments: a seed, and the number of collectives. All ranks draw the same ones. Each prints how many
were right, and for those that were not what they gave.
"""

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fake_accelerator import FakeAccelerator, install

LONG = 2_520_000  # elements, of all ranks where each has its own: goes in parts


class Program:
    """One rank.

    Args:
        seed: of the collectives, the same on all ranks.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        rank = int(os.environ["RANK"])
        self.fake = FakeAccelerator(seed * 1000 + rank, kernels=True, longest=0.003)
        self.theirs: set[int] = set()
        install(lambda one: one.untyped_storage().data_ptr() in self.theirs, self.fake)
        dist.init_process_group("p4reduce")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.kept: list[torch.Tensor] = []  # so that no other tensor gets their memory
        self.pending: list[Callable[[], None]] = []
        self.wrong: list[str] = []
        self.done = 0

    def tensor(self, count: int, dtype: torch.dtype, on_device: bool, strided: bool) -> Any:
        whole = torch.zeros(2 * count if strided else count, dtype=dtype)
        self.kept.append(whole)
        if on_device:
            self.theirs.add(whole.untyped_storage().data_ptr())
        return whole[::2] if strided else whole

    def enqueue(self, on_device: bool, job: Callable[[], Any]) -> None:
        if on_device:
            self.fake.kernel(job)
        else:
            job()

    def one(self) -> None:
        """Start a collective; what it gives is looked at some time later."""
        draw = self.draw
        kind = draw.choice(KINDS)
        dtype = draw.choice([torch.float32, torch.int32, torch.bfloat16, torch.int64])
        on_device, strided = draw.random() < 0.7, draw.random() < 0.2
        is_long = draw.random() < 0.06
        count = draw.randrange(1, 3000) * self.size
        if is_long:
            count = LONG // self.size if kind in OF_ALL_RANKS else LONG
            # A device's stream would make it contiguous. Here this thread would, and too early.
            strided = strided and not on_device
        base = draw.randrange(1, 20)
        waits = draw.random()

        def made(numbers: int) -> Any:
            return self.tensor(numbers, dtype, on_device, strided)

        work, results = kind(self, made, count, base, on_device)
        if waits < 0.2:
            future = work.get_future()
            self.later(on_device, lambda: future.wait(), results, kind.__name__, work)
        else:
            self.later(on_device, work.wait, results, kind.__name__, work)

    def later(
        self, on_device: bool, wait: Callable[[], Any], results: Any, name: str, work: Any
    ) -> None:
        def look() -> None:
            wait()
            if on_device:
                work.wait()  # joins the streams, where a future was waited for

            def compare() -> None:
                for tensor, wanted in results:
                    if not (tensor == wanted).all():
                        self.wrong.append(f"{name}: {tensor.unique()[:5]}, not {wanted}")
                self.done += 1

            self.enqueue(on_device, compare)

        self.pending.append(look)
        while len(self.pending) > self.draw.randrange(1, 6):
            self.pending.pop(self.draw.randrange(len(self.pending)))()

    def end(self) -> None:
        while self.pending:
            self.pending.pop()()
        self.fake.finish()
        for text in self.wrong[:5]:
            print("wrong:", text)
        print("right:", self.done - len(self.wrong), flush=True)
        dist.destroy_process_group()
        print("held:", self.fake.memory.held_in_the_end(), flush=True)


def numbers(count: int, base: int) -> Any:
    """Return small numbers that show which ones they are."""
    return torch.arange(count) // 997 % 5 + base


def total(program: Program, wanted: Any) -> Any:
    """Return the sum of what all ranks give; `wanted` is what rank 0 gives."""
    return program.size * wanted + sum(range(program.size))


def all_reduce(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    tensor = made(count)
    operation = program.draw.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX])
    given = numbers(count, base)
    program.enqueue(on_device, lambda: tensor.copy_(given + program.rank))
    work = dist.all_reduce(tensor, operation, async_op=True)
    largest = given + program.size - 1
    return work, [(tensor, total(program, given) if operation == dist.ReduceOp.SUM else largest)]


def reduce(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    tensor = made(count)
    root = base % program.size
    program.enqueue(on_device, lambda: tensor.fill_(base + program.rank))
    work = dist.reduce(tensor, root, async_op=True)
    total = sum(base + rank for rank in range(program.size))
    return work, [(tensor, total)] if program.rank == root else []


def broadcast(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    tensor = made(count)
    root = base % program.size
    program.enqueue(on_device, lambda: tensor.fill_(base + program.rank))
    return dist.broadcast(tensor, root, async_op=True), [(tensor, base + root)]


def all_gather(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    mine, outputs = made(count), [made(count) for _ in range(program.size)]
    if program.draw.random() < 0.3:
        mine = outputs[program.rank]
    given = numbers(count, base)
    program.enqueue(on_device, lambda: mine.copy_(given + program.rank))
    work = dist.all_gather(outputs, mine, async_op=True)
    return work, [(one, given + rank) for rank, one in enumerate(outputs)]


def all_gather_into(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    mine, output = made(count), made(count * program.size)
    parts = [output[rank * count : (rank + 1) * count] for rank in range(program.size)]
    if program.draw.random() < 0.3:
        mine = parts[program.rank]  # as FSDP2 does
    given = numbers(count, base)
    program.enqueue(on_device, lambda: mine.copy_(given + program.rank))
    work = dist.all_gather_into_tensor(output, mine, async_op=True)
    return work, [(part, given + rank) for rank, part in enumerate(parts)]


def reduce_scatter(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    whole, output = made(count * program.size), made(count)
    first = count * program.rank
    if program.draw.random() < 0.3:
        output = whole[first : first + count]
    given = numbers(count * program.size, base)
    program.enqueue(on_device, lambda: whole.copy_(given + program.rank))
    work = dist.reduce_scatter_tensor(output, whole, async_op=True)
    return work, [(output, total(program, given[first : first + count]))]


def reduce_scatter_list(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    inputs, output = [made(count) for _ in range(program.size)], made(count)
    given = numbers(count, base)
    for rank, tensor in enumerate(inputs):
        program.enqueue(
            on_device,
            lambda tensor=tensor, rank=rank: tensor.copy_(given + program.rank + rank),
        )
    work = dist.reduce_scatter(output, inputs, async_op=True)
    return work, [(output, total(program, given + program.rank))]


def all_to_all(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    mine, output = made(count), made(count)
    program.enqueue(on_device, lambda: mine.fill_(base + program.rank))
    work = dist.all_to_all_single(output, mine, async_op=True)
    each = count // program.size
    parts = [output[rank * each : (rank + 1) * each] for rank in range(program.size)]
    return work, [(part, base + rank) for rank, part in enumerate(parts)]


def gather(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    root = base % program.size
    mine = made(count)
    outputs = [made(count) for _ in range(program.size)] if program.rank == root else None
    program.enqueue(on_device, lambda: mine.fill_(base + program.rank))
    work = dist.gather(mine, outputs, dst=root, async_op=True)
    return work, [(one, base + rank) for rank, one in enumerate(outputs or [])]


def scatter(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    root = base % program.size
    output = made(count)
    parts = [made(count) for _ in range(program.size)] if program.rank == root else None
    for rank, part in enumerate(parts or []):
        program.enqueue(on_device, lambda part=part, rank=rank: part.fill_(base + rank))
    work = dist.scatter(output, parts, src=root, async_op=True)
    return work, [(output, base + program.rank)]


def ring(program: Program, made: Any, count: int, base: int, on_device: bool) -> Any:
    mine, output = made(count), made(count)
    before = (program.rank - 1) % program.size
    program.enqueue(on_device, lambda: mine.fill_(base + program.rank))
    received = dist.irecv(output, before)
    dist.isend(mine, (program.rank + 1) % program.size).wait()
    return received, [(output, base + before)]


KINDS = [
    all_reduce,
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    all_gather_into,
    reduce_scatter,
    reduce_scatter_list,
    all_to_all,
    gather,
    scatter,
    ring,
]
OF_ALL_RANKS = {all_gather, all_gather_into, reduce_scatter, reduce_scatter_list}


if __name__ == "__main__":
    running = Program(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        running.one()
    running.end()
