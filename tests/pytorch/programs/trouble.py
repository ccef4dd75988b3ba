# SPDX-License-Identifier: Apache-2.0
"""A rank that does something wrong, or meets one that does; prints what it is told as JSON.

Arguments: what is wrong, and a file for torch's store (so that no rank has to be the store's host).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.torch import communicators, routes
from torch.distributed import ReduceOp

WRONG, FILE, RANK, SIZE = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def told(what: Callable[[], Any]) -> None:
    try:
        what()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        print(json.dumps({"kinds": kinds, "text": str(error)}), flush=True)
    else:
        print(json.dumps({"kinds": [], "text": "no error"}), flush=True)


def init(seconds: float) -> None:
    timeout = timedelta(seconds=seconds)
    dist.init_process_group(
        "p4reduce", init_method=f"file://{FILE}", rank=RANK, world_size=SIZE, timeout=timeout
    )


def lose_one_at(module: Any, name: str) -> None:
    """Make a group; rank 1 ends where it calls a function of a module."""
    if RANK == 1:
        setattr(module, name, lambda *place, **ways: os._exit(0))
    told(dist.new_group)


def fail_once(module: Any, name: str) -> None:
    """Make a group; what a function of a module makes for rank 1 comes to nothing at first."""
    real, calls = getattr(module, name), []

    def failing(*place: Any, **ways: Any) -> Any:
        calls.append(1)
        if RANK == 1 and len(calls) == 1:
            raise dist.DistNetworkError("timed out")
        return real(*place, **ways)

    setattr(module, name, failing)
    total = torch.ones(3)
    told(lambda: dist.all_reduce(total, ReduceOp.MAX, group=dist.new_group()))
    print(json.dumps({"attempts": len(calls)}), flush=True)


def main() -> None:
    if WRONG == "missing":
        if RANK != 1:
            told(lambda: init(5))
        return
    init({"late": 8, "joining": 3600, "connecting": 3600}.get(WRONG, 60))
    tensor = torch.ones(3 + RANK if WRONG == "size" else 3)
    if WRONG == "size":
        told(lambda: dist.all_reduce(tensor))
    elif WRONG == "shape":
        told(lambda: dist.all_reduce(torch.ones((20, 10) if RANK != 1 else (10, 20))))
    elif WRONG == "shape of a broadcast":
        told(lambda: dist.broadcast(torch.ones((20, 10) if RANK != 1 else (10, 20)), 0))
    elif WRONG == "shape of an all_gather":
        tensor = torch.ones((20, 10) if RANK != 1 else (10, 20))
        told(lambda: dist.all_gather([torch.empty_like(tensor) for _ in range(3)], tensor))
    elif WRONG == "shape of a reduce_scatter":
        tensor = torch.ones((20, 10) if RANK != 1 else (10, 20))
        told(lambda: dist.reduce_scatter(torch.empty_like(tensor), [tensor] * 3))
    elif WRONG == "models":
        model = torch.nn.Linear(*((20, 10) if RANK != 1 else (10, 20)), bias=False)
        told(lambda: torch.nn.parallel.DistributedDataParallel(model))
    elif WRONG == "dtype":
        told(lambda: dist.broadcast(tensor.to([torch.float32, torch.int32][RANK % 2]), 0))
    elif WRONG == "operation":
        told(lambda: dist.all_reduce(tensor, (ReduceOp.MIN, ReduceOp.MAX)[RANK % 2]))
    elif WRONG == "kind":  # one by the switch, the other by Gloo
        told(lambda: dist.all_reduce(tensor, (ReduceOp.SUM, ReduceOp.MAX)[RANK % 2]))
    elif WRONG == "late" and RANK == 0:
        told(lambda: dist.all_reduce(tensor))
    elif WRONG == "late":
        time.sleep(12)
    elif WRONG == "overflow":
        told(lambda: dist.all_reduce(torch.tensor([2**31 - 1], dtype=torch.int32)))
        told(lambda: dist.all_reduce(tensor))  # that breaks nothing
    elif WRONG == "joining":  # when all have said that they are here
        lose_one_at(communicators, "init")
    elif WRONG == "connecting":  # when all have joined the job
        routes.CONNECT_TIMEOUT = 5.0
        lose_one_at(routes, "GlooDelegate")
    elif WRONG == "connecting slowly":
        routes.CONNECT_TIMEOUT = 2.0
        fail_once(routes, "GlooDelegate")
    elif WRONG == "exit":  # without destroy_process_group, with works that nobody waits for
        dist.all_reduce(tensor, async_op=True).get_future()
        if RANK == 0:
            dist.all_reduce(tensor, async_op=True).get_future()
        print("at the end", flush=True)
        return
    elif WRONG == "monitored":  # both come, and then rank 0 alone
        told(lambda: dist.monitored_barrier(timeout=timedelta(seconds=60)))
        if RANK == 0:
            told(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True))
    elif WRONG == "again":  # destroyed and made again, in the same store
        dist.destroy_process_group()
        init(60)
        told(lambda: dist.all_reduce(tensor))
    dist.destroy_process_group()
    print("destroyed", flush=True)


if __name__ == "__main__":
    main()
