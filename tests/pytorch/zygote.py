# SPDX-License-Identifier: Apache-2.0
"""A process that has imported torch, and forks one for each rank that a test asks for.

To import torch takes three seconds of a core, which would be most of what the tests do. Reads a
line of JSON for each rank from stdin, with "program" (a path and its arguments), "environment",
"directory", "out" and "err". Prints {"pid": …} for it, and {"ended": pid, "code": …} when it has
ended, the code negative after a signal. Kills its ranks and ends at the end of stdin.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import selectors
import signal
import sys
from pathlib import Path
from typing import Any

# What the ranks' programs import, so that they find it here.
import p4reduce
import p4reduce.torch.backend
import p4reduce.torch.hooks
import torch
import torch.distributed._functional_collectives
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.optim
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

_PR_SET_PDEATHSIG = 1
LOADED = (p4reduce, torch, default_hooks, powerSGD_hook)


def become(request: dict[str, Any]) -> list[str]:
    """Make this process, just forked, one that was started with a program; return argv."""
    os.setsid()  # as the kernel shares the cores among sessions
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a test may abort it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # if the zygote is killed
    for number, path, mode in (
        (0, os.devnull, "rb"),
        (1, request["out"], "wb"),
        (2, request["err"], "wb"),
    ):
        with Path(path).open(mode) as file:
            os.dup2(file.fileno(), number)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = str(Path(request["program"][0]).parent)
    return [str(word) for word in request["program"]]


def serve() -> list[str] | None:
    """Fork ranks until stdin ends. Returns in the rank, with its argv, and here in the end."""
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"a fork would lose threads: {len(threads)}"
    children: dict[int, int] = {}  # pid by pidfd
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        rest = b""
        while True:
            for key, _ in waiting.select():
                if key.fd != 0:
                    waiting.unregister(key.fd)
                    pid = children.pop(key.fd)
                    os.close(key.fd)
                    _, status = os.waitpid(pid, 0)
                    tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    for pid in children.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    pid = os.fork()
                    if not pid:
                        for descriptor in children:
                            os.close(descriptor)
                        return become(request)
                    descriptor = os.pidfd_open(pid)
                    children[descriptor] = pid
                    waiting.register(descriptor, selectors.EVENT_READ)
                    tell({"pid": pid})


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    program = serve()
    if program is not None:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
