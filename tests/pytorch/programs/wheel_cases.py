# SPDX-License-Identifier: Apache-2.0
"""A rank that runs cases of the test-suite that torch's wheel ships, on the backend p4reduce.

The suite starts new processes for each case. Here one set of processes runs all, since most of
the time would go into importing torch; a case that fails ends them, and whoever started them
goes on with the next one. Prints a line of JSON for each case.
"""

import json
import os
import sys
import tempfile
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

SHARED = Path(sys.argv[1])
NAMES = sys.argv[2:]

# What the suite reads when it is imported. Cases are skipped by the backend's name: those for
# Gloo's are those for ours.
os.environ["BACKEND"] = "gloo"
os.environ["TEMP_DIR"] = str(SHARED)
(SHARED / "test_dir").mkdir(exist_ok=True)
(SHARED / "barrier").mkdir(exist_ok=True)
tempfile.tempdir = str(SHARED)

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402


class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """A case that is run in this process."""


def run(name: str, rank: int) -> str:
    case = Case(name)
    case.rank = rank
    case.file_name = str(SHARED / "store")
    for path in (SHARED / "test_dir").iterdir():
        path.unlink(missing_ok=True)
    case._barrier(timeout=60)
    set_rng_seed(1234)  # as the suite does, the same on all ranks
    method = getattr(case, name)
    if getattr(getattr(Case, name), "__unittest_skip__", False):
        return "skipped: not for Gloo"
    try:
        method()
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as end:
        return f"skipped: exit code {end.code}"
    except BaseException:
        return traceback.format_exc()
    return "passed"


def main() -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=60))
    size = os.environ["WORLD_SIZE"]
    for name in NAMES:
        # Cases with groups want 8 ranks, and take 3.
        os.environ["WORLD_SIZE"] = "8" if "group" in name else size
        print(json.dumps({"case": name, "rank": rank, "begin": True}), flush=True)
        outcome = run(name, rank)
        print(json.dumps({"case": name, "rank": rank, "outcome": outcome}), flush=True)
        if not outcome.startswith(("passed", "skipped")):
            os._exit(3)
        suite.Barrier.sync(timeout=60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
