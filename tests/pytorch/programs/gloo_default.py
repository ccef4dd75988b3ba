# SPDX-License-Identifier: Apache-2.0
"""A default group of the backend that is the first argument; prints what it warns of. With a second
argument, "no switch", p4reduce's variables are not set."""

import json
import os
import sys
import warnings

import torch.distributed as dist


def main() -> None:
    if "no switch" in sys.argv:
        for name in ("P4REDUCE_CONTROLLER", "P4REDUCE_INTERFACE", "P4REDUCE_SWITCHES"):
            os.environ.pop(name, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.init_process_group(sys.argv[1])
    texts = [str(one.message) for one in caught]
    texts = [text for text in texts if "default process group" in text]
    print(json.dumps({"texts": texts}), flush=True)
    dist.barrier()  # a rank that leaves at once breaks the other's connecting, in Gloo
    dist.destroy_process_group()


main()
