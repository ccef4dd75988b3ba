# SPDX-License-Identifier: Apache-2.0
"""Runs another program of this folder as if all its tensors were an accelerator's.

Arguments: a seed, the program, its arguments.
"""

import os
import runpy
import sys
from pathlib import Path

from fake_accelerator import FakeAccelerator, install

if __name__ == "__main__":
    seed = int(sys.argv[1]) * 1000 + int(os.environ["RANK"])
    install(lambda tensor: True, FakeAccelerator(seed, kernels=False, longest=0.001))
    sys.argv = sys.argv[2:]
    runpy.run_path(str(Path(__file__).parent / sys.argv[0]), run_name="__main__")
