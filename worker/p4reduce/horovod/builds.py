# SPDX-License-Identifier: Apache-2.0
"""Horovod's queries of build options."""

from __future__ import annotations


def gloo_enabled() -> bool:
    """Return True: collectives that the switch cannot do use Gloo."""
    return True


gloo_built = gloo_enabled


def mpi_enabled() -> bool:
    """Return False."""
    return False


mpi_built = mpi_threads_supported = ddl_built = ccl_built = cuda_built = rocm_built = mpi_enabled


def nccl_built() -> int:
    """Return 0: NCCL is not used."""
    return 0
