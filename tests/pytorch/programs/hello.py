# SPDX-License-Identifier: Apache-2.0
"""A script that imports nothing of p4reduce, to be started by any launcher.

With "die", rank 1 is killed within the first attempt, when all have reduced something. With "core"
it is the core library that reduces, without arguments.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def core() -> None:
    import numpy as np
    import p4reduce

    with p4reduce.init() as comm:
        total = comm.allreduce(np.ones(3, np.float32))
        print(f"rank {comm.rank} of {comm.size}: {total[0]}", flush=True)


def main() -> None:
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=90))
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if "die" in sys.argv and ATTEMPT == "0" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    print(f"rank {rank} of {size}, attempt {ATTEMPT}: {tensor[0]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    core() if "core" in sys.argv else main()
