# SPDX-License-Identifier: Apache-2.0
"""A process that has imported the packages and loaded the P4 program, and forks one for each
switch, controller or worker that a test starts: see `forked`, which talks to it.

Reads requests from a Unix socket, as JSON with stdin, stdout and stderr beside it, and answers each
with the pid. The process asked for is no child of this one but of who asked, which has made itself
the reaper of orphans meanwhile: it can wait for it as for any child. Ends with the socket.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

# What the processes import, so that they find it here. None of it starts a thread, opens a gRPC
# channel or reads the environment when it is imported.
MODULES = (
    "p4reduce",
    "p4reduce.initialize",
    "p4reduce.session.session",
    "p4reduce.switches.joining",
    "p4reduce_controller.cli.command_line",
    "p4reduce_controller.serving",
    "p4reduce_lab.cli",
    "p4reduce_switch.cli",
    "p4reduce_switch.dataplane",
    "p4reduce_switch.native_pipeline",
    "p4reduce_switch.p4runtime.server",
)
PROGRAM = Path(__file__).parents[2] / "p4src" / "compiled" / "p4reduce.json"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork until the socket ends. Returns in each process its request, and here None."""
    while True:
        data, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not data:
            return None
        here, there = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            request: dict[str, Any] = json.loads(data)
            become(request, files, between, there)
            return request
        os.close(there)
        os.waitpid(between, 0)
        asked.send(os.read(here, 20))  # nothing, if it did not come so far
        for descriptor in (here, *files):
            os.close(descriptor)


def become(request: dict[str, Any], files: list[int], between: int, there: int) -> None:
    """Make this process, just forked, like one that was started with a command; tell its pid."""
    for target, descriptor in enumerate(files):
        os.dup2(descriptor, target)
    if request["session"]:
        os.setsid()
    while os.getppid() == between:  # which ends at once, and makes it an orphan
        time.sleep(0.0002)
    if request["tethered"]:  # as p4reduce_lab.processes.tether does
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != request["parent"]:
            os._exit(1)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.write(there, str(os.getpid()).encode())
    os.closerange(3, max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 1)


def end(words: list[str]) -> None:
    """Be `python WORDS…` to its end.

    Like a process of `multiprocessing` it ends without clearing all modules away, which here is
    most of what a short process costs: it would copy the memory that it shares with this server.
    """
    status = 0
    try:
        run(words)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code or 0
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for those that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)


def run(words: list[str]) -> None:
    """Be `python WORDS…`, which begins with -m and a module or with -c and a program."""
    kind, what, *arguments = words
    sys.argv = [kind, *arguments]
    sys.path[0] = str(Path.cwd()) if kind == "-m" else ""
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which would start more of them
    for module in MODULES:
        importlib.import_module(module)
    from p4reduce_switch.loader.load_program import load
    from p4reduce_switch.native.kept import generated_for

    config = PROGRAM.read_bytes()
    generated_for(config, load(config), with_queues=False)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"a fork would lose threads: {len(threads)}"
    gc.collect()
    gc.freeze()  # or each process would copy all of it at its first collection
    asked_for = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked_for is not None:
        end(asked_for["words"])
