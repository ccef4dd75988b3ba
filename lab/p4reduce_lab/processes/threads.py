# SPDX-License-Identifier: Apache-2.0
"""The number of threads for numpy's linear algebra in processes of ranks."""

from __future__ import annotations

import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def single_thread_variables() -> dict[str, str]:
    """Return the environment for one thread, as torchrun sets it, unless the user has set another
    number."""
    return {name: os.environ.get(name, "1") for name in VARIABLES}
