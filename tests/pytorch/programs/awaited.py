# SPDX-License-Identifier: Apache-2.0
"""Which thread runs a small collective: the caller's, if that waits for it at once.

Each rank prints a line of JSON: how many of its collectives the caller's thread ran, by kind.
"""

import json
import threading
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from p4reduce.protocol.native_iteration import NativeIteration

CALLS = 5

ran: Counter[str] = Counter()
kind = ""
run_for_caller = NativeIteration.run_for_caller


def counted(self: NativeIteration, *args: Any) -> int:
    if threading.current_thread() is threading.main_thread():
        ran[kind] += 1
    return run_for_caller(self, *args)


def main() -> None:
    global kind
    dist.init_process_group("p4reduce")
    tensor = torch.ones(100)
    NativeIteration.run_for_caller = counted  # type: ignore[method-assign]
    for name, is_async in (("waits", False), ("async_op", True)):
        for _ in range(CALLS):
            kind = "barrier"
            dist.barrier()
            kind = name
            tensor.fill_(1.0)
            work = dist.all_reduce(tensor, async_op=is_async)
            if work is not None:
                work.wait()
            assert (tensor == dist.get_world_size()).all()
    print(json.dumps({name: ran[name] for name in ("waits", "async_op")}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
