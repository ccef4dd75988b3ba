# SPDX-License-Identifier: Apache-2.0
"""Rank 1 begins its backward pass when rank 0 has given all buckets to the hook.

None of them can be complete before, so this ends only where the hook does not wait for them.
"""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 8
called: list[int] = []
completed: list[int] = []


def counting(state: hooks.HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As allreduce_hook, and tells when all buckets have been given to it."""
    index, last = bucket.index(), bucket.is_last()
    buffer = bucket.buffer().data_ptr()
    future = hooks.allreduce_hook(state, bucket)
    called.append(index)

    def note(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        completed.append(len(called))
        assert done.value().data_ptr() == buffer, "the bucket was copied"
        return done.value()

    if last and index and dist.get_rank() == 0:
        dist.distributed_c10d._get_default_store().set("go", "1")
    return future.then(note)


def main() -> None:
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=60))
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(300, 300) for _ in range(LAYERS)]), bucket_cap_mb=0.4
    )
    model.register_comm_hook(hooks.HookState(), counting)
    # The first step has all parameters in one bucket; DDP sorts them into buckets after it.
    model(torch.ones(2, 300)).sum().backward()
    called.clear()
    completed.clear()
    dist.barrier()
    loss = model(torch.ones(2, 300)).sum()
    if dist.get_rank() == 1:
        dist.distributed_c10d._get_default_store().wait(["go"], timedelta(seconds=60))
    loss.backward()
    print(json.dumps({"called": len(called), "when_completed": completed}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
