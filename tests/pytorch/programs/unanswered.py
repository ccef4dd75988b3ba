# SPDX-License-Identifier: Apache-2.0
"""A rank that polls a receive for which nobody sends, and then ends or destroys the group.

Arguments: "exit" or "destroy", and whether the work is "kept" or "dropped".
"""

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

POLLS = 20


def main() -> None:
    way, kept = sys.argv[1:]
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=600))
    other = 1 - dist.get_rank()
    works = [dist.irecv(torch.zeros(3), other)]
    for _ in range(POLLS):
        assert not works[0].is_completed()
        time.sleep(0.001)
    dist.barrier()  # the other's end would complete it
    if kept == "dropped":
        works.clear()
    if way == "destroy":
        dist.destroy_process_group()
        for work in works:
            record = {"completed": work.is_completed(), "error": str(work.exception())}
            print(json.dumps(record), flush=True)
    print("at the end", flush=True)


if __name__ == "__main__":
    main()
