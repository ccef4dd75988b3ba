# SPDX-License-Identifier: Apache-2.0
"""A rank that runs cases of the test-suite that torch's wheel ships, on the backend p4reduce.

The suite starts new processes for each case. Here one set of processes runs all, since most of
the time would go into importing torch; each case has a process group of its own, made and destroyed
as the suite does. A case that fails ends the processes, and whoever started them continues with the
next one. Prints lines of JSON for each case.

Arguments: a directory that the ranks share, the backend's name, and the cases; or "--list", for the
names of all that Gloo's run does not leave out.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

SHARED = Path(sys.argv[1])
BACKEND = sys.argv[2]
NAMES = sys.argv[3:]

# What the suite reads when it is imported. Cases are skipped by the backend's name: those for
# Gloo's are those for ours.
os.environ["BACKEND"] = "gloo"
os.environ["TEMP_DIR"] = str(SHARED)
(SHARED / "test_dir").mkdir(exist_ok=True)
(SHARED / "barrier").mkdir(exist_ok=True)
tempfile.tempdir = str(SHARED)

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

TIMEOUT = 60  # seconds, of a process group and of meeting the other ranks
REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """A case that is run in this process."""

    @property
    def world_size(self) -> str:
        return os.environ["RANKS"]


def run(case: Case, name: str) -> str:
    method = getattr(case, name)
    if getattr(method, "__unittest_skip__", False):
        return f"skipped: {method.__unittest_skip_why__}"
    set_rng_seed(1234)  # as the suite does, the same on all ranks
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # ours are lines of JSON
            method()
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as end:
        return f"skipped: {REASONS[end.code]}" if end.code in REASONS else f"exit code {end.code}"
    except BaseException:
        return traceback.format_exc()
    return "passed"


def main() -> None:
    rank, size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
    os.environ["RANKS"] = size
    for name in NAMES:
        print(json.dumps({"case": name, "begin": True}), flush=True)
        case = Case(name)
        case.rank = rank
        case.file_name = str(SHARED / f"store_{name}")
        dist.init_process_group(
            BACKEND,
            init_method=case.init_method,
            world_size=int(size),
            rank=rank,
            timeout=timedelta(seconds=suite.CUSTOM_PG_TIMEOUT.get(name, TIMEOUT)),
        )
        if rank == 0:
            for path in (SHARED / "test_dir").iterdir():
                path.unlink()
        case._barrier(timeout=TIMEOUT)
        # Some cases want 8 ranks, and take 3.
        os.environ["WORLD_SIZE"] = "8" if "group" in name or "monitored" in name else size
        outcome = run(case, name)
        os.environ["WORLD_SIZE"] = size
        print(json.dumps({"case": name, "outcome": outcome}), flush=True)
        if not outcome.startswith(("passed", "skipped")):
            os._exit(3)
        case._barrier(timeout=TIMEOUT)
        if dist.is_initialized():  # some cases destroy it themselves
            dist.destroy_process_group()


def listed() -> list[str]:
    names = [name for name in dir(Case) if name.startswith("test_")]
    return [name for name in names if not hasattr(getattr(Case, name), "__unittest_skip__")]


if __name__ == "__main__":
    if NAMES == ["--list"]:
        print("\n".join(listed()))
    else:
        main()
