# SPDX-License-Identifier: Apache-2.0
"""How many threads numpy's linear algebra may use: for all that starts ranks."""

from __future__ import annotations

import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def single_thread_variables() -> dict[str, str]:
    """The environment of a process that shares the machine with others like it: one thread, as
    torchrun sets it, unless the user has said otherwise."""
    return {name: os.environ.get(name, "1") for name in VARIABLES}
