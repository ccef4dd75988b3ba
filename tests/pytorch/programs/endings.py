# SPDX-License-Identifier: Apache-2.0
"""A rank that ends its collectives in one of the ways of `WAYS`, which is the argument.

Calls every collective, with tensors of several dtypes and layouts, and looks only then at what was
written. Prints a line of JSON for each, with what is wrong, or nothing.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

WAYS = {
    "poll": "asks until it is completed",
    "result": "takes the result",
    "future": "asks until its future is done",
    "callback": "is called by its future",
    "destroy": "destroys the group while works are held",
    "destroy dropped": "destroys the group, and holds no works",
    "inference tensors": "waits for tensors that were made in inference mode",
    "inference calls": "waits for calls that were made in inference mode",
}
ROWS, COLUMNS = 6, 5
DEADLINE = 60.0  # seconds
LAYOUTS = ("dense", "transposed", "every second column")
DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.int64)


@dataclass
class Call:
    """A collective, what it writes to on this rank, and what is to be there."""

    name: str
    start: Callable[[Any], Any]
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor]


def numbers(rank: int, dtype: torch.dtype, rows: int = ROWS) -> torch.Tensor:
    """Whose sums over four ranks are exact in all dtypes."""
    return (torch.arange(rows * COLUMNS).reshape(rows, COLUMNS) % 7 + rank).to(dtype)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return tensor.t().contiguous().t()
    if layout == "every second column":
        wide = torch.zeros((len(tensor), 2 * COLUMNS), dtype=tensor.dtype)
        wide[:, ::2] = tensor
        return wide[:, ::2]
    return tensor.clone()


def calls(layout: str, dtype: torch.dtype) -> Iterator[Call]:
    rank, size = dist.get_rank(), dist.get_world_size()
    every = [numbers(one, dtype) for one in range(size)]
    tall = [numbers(one, dtype, size * ROWS) for one in range(size)]
    following, before = (rank + 1) % size, (rank - 1) % size

    def made(tensor: torch.Tensor) -> torch.Tensor:
        return laid_out(tensor, layout)

    def room(rows: int = ROWS) -> torch.Tensor:
        return made(torch.zeros((rows, COLUMNS), dtype=dtype))

    def call(
        name: str, start: Callable[[Any], Any], outputs: Any, expected: list[torch.Tensor]
    ) -> Call:
        return Call(f"{name}, {layout}, {dtype}", start, outputs, expected)

    for operation, total in (
        (ReduceOp.SUM, torch.stack(every).sum(0).to(dtype)),
        (ReduceOp.MAX, every[-1]),
    ):
        of_tall = tall[-1] if operation == ReduceOp.MAX else torch.stack(tall).sum(0).to(dtype)
        part = of_tall[rank * ROWS : (rank + 1) * ROWS]
        one, two, three = made(every[rank]), made(every[rank]), made(every[rank])
        yield call(
            f"all_reduce {operation}",
            lambda group, one=one, op=operation: dist.all_reduce(one, op, group, async_op=True),
            [one],
            [total],
        )
        yield call(
            f"all_reduce_coalesced {operation}",
            lambda group, one=two, two=three, op=operation: ours(group).allreduce_coalesced(
                [one, two], coalesced(op)
            ),
            [two, three],
            [total, total],
        )
        root = made(every[rank])
        yield call(
            f"reduce {operation}",
            lambda group, one=root, op=operation: dist.reduce(one, 0, op, group, async_op=True),
            *([root], [total]) if rank == 0 else ([], []),
        )
        output, rows = room(), [made(one) for one in tall[rank].split(ROWS)]
        yield call(
            f"reduce_scatter {operation}",
            lambda group, out=output, rows=rows, op=operation: dist.reduce_scatter(
                out, rows, op, group, async_op=True
            ),
            [output],
            [part],
        )
        output, whole = room(), made(tall[rank])
        yield call(
            f"reduce_scatter_tensor {operation}",
            lambda group, out=output, whole=whole, op=operation: dist.reduce_scatter_tensor(
                out, whole, op, group, async_op=True
            ),
            [output],
            [part],
        )
    copied = made(every[rank])
    yield call(
        "broadcast",
        lambda group: dist.broadcast(copied, 0, group, async_op=True),
        [copied],
        every[:1],
    )
    mine = made(every[rank])
    listed = [room() for _ in range(size)]
    yield call(
        "all_gather",
        lambda group: dist.all_gather(listed, mine, group, async_op=True),
        listed,
        every,
    )
    whole_room = room(size * ROWS)
    yield call(
        "all_gather_into_tensor",
        lambda group: dist.all_gather_into_tensor(whole_room, mine, group, async_op=True),
        [whole_room],
        [torch.cat(every)],
    )
    gathered = [room() for _ in range(size)] if rank == 0 else None
    yield call(
        "gather",
        lambda group: dist.gather(mine, gathered, 0, group, async_op=True),
        gathered or [],
        every if rank == 0 else [],
    )
    scattered, scattering = room(), [made(one) for one in tall[0].split(ROWS)]
    yield call(
        "scatter",
        lambda group: dist.scatter(
            scattered, scattering if rank == 0 else None, 0, group, async_op=True
        ),
        [scattered],
        [tall[0].split(ROWS)[rank]],
    )
    exchanged, sent = room(size * ROWS), made(tall[rank])
    theirs = [one.split(ROWS)[rank] for one in tall]
    yield call(
        "all_to_all_single",
        lambda group: dist.all_to_all_single(exchanged, sent, group=group, async_op=True),
        [exchanged],
        [torch.cat(theirs)],
    )
    places, parts = [room() for _ in range(size)], [made(one) for one in tall[rank].split(ROWS)]
    yield call(
        "all_to_all",
        lambda group: dist.all_to_all(places, parts, group=group, async_op=True),
        places,
        theirs,
    )
    received = room()
    yield call(
        "send and recv",
        lambda group: Both(
            dist.irecv(received, before, group=group),
            dist.isend(made(every[rank]), following, group=group),
        ),
        [received],
        [every[before]],
    )


def sparse_calls() -> Iterator[Call]:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, width in ((torch.float32, 3), (torch.bfloat16, 3), (torch.float32, 2000)):
        tensor = torch.sparse_coo_tensor(
            torch.tensor([[rank, 5]]), torch.ones(2, width), (9, width), check_invariants=True
        ).to(dtype)
        total = torch.zeros(9, width)
        total[:size] += 1
        total[5] += size
        yield Call(
            f"all_reduce of sparse {dtype} {width}",
            lambda group, tensor=tensor: dist.all_reduce(tensor, group=group, async_op=True),
            [tensor],
            [total.to(dtype)],
        )


class Both:
    """A receive, and a send that has to end as well."""

    def __init__(self, received: Any, sent: Any) -> None:
        self.received, self.sent = received, sent

    def is_completed(self) -> bool:
        return bool(self.received.is_completed() and self.sent.is_completed())

    def wait(self) -> None:
        self.sent.wait()
        self.received.wait()

    def result(self) -> Any:
        return self.sent.result() and self.received.result()

    def get_future(self) -> Any:
        self.sent.get_future()
        return self.received.get_future()


def ours(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def coalesced(operation: Any) -> Any:
    options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
    options.reduceOp = operation
    return options


def poll(done: Callable[[], bool]) -> str:
    end = time.monotonic() + DEADLINE
    while not done():
        if time.monotonic() > end:
            return "never completed"
        time.sleep(0.001)
    return ""


def ended(work: Any, way: str) -> str:
    """End a work; return what is wrong with it."""
    if way == "poll":
        wrong = poll(work.is_completed)
        single = not isinstance(work, Both)
        return wrong or ("no success" if single and not work.is_success() else "")
    if way.startswith("inference"):
        work.wait()
        return ""
    if way == "result":
        work.result()
        return ""
    if way == "future":
        return poll(work.get_future().done)
    called: list[Any] = []
    work.get_future().add_done_callback(lambda done: called.append(done.value()))
    return poll(lambda: bool(called))


def difference(call: Call) -> str:
    for output, right in zip(call.outputs, call.expected, strict=True):
        got = output.to_dense() if output.layout != torch.strided else output
        if not torch.equal(got, right):
            return f"{got.tolist()} is not {right.tolist()}"
    return ""


def all_calls() -> Iterator[Call]:
    for layout in LAYOUTS:
        for dtype in DTYPES:
            yield from calls(layout, dtype)
    yield from sparse_calls()


def main() -> None:
    way = sys.argv[1]
    if way not in WAYS:
        raise SystemExit(f"{way!r} is none of {', '.join(WAYS)}")
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=DEADLINE))
    if way in ("destroy", "destroy dropped"):
        left, works = list(all_calls()), []
        for call in left:
            work = call.start(None)
            if way == "destroy":
                works.append(work)
            del work
        begun = time.monotonic()
        dist.destroy_process_group()
        print(json.dumps({"destroyed after": time.monotonic() - begun}), flush=True)
        for call in left:
            print(json.dumps({"case": call.name, "wrong": difference(call)}), flush=True)
        return
    with torch.inference_mode(way == "inference tensors"):
        left = list(all_calls())
    for call in left:
        try:
            with torch.inference_mode(way.startswith("inference")):
                work = call.start(None)
            wrong = ended(work, way)
        except Exception as error:
            wrong = f"raises {error!r}"
        wrong = wrong or difference(call)
        print(json.dumps({"case": call.name, "wrong": wrong}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
