# SPDX-License-Identifier: Apache-2.0
"""Rank and world size from the environments of launchers."""

from __future__ import annotations

import pytest
from p4reduce.environment import Placement, is_placed, job_name, placement
from p4reduce.errors import ConfigurationError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "4",
    "OMPI_COMM_WORLD_SIZE": "9",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "10", "MPI_LOCALRANKID": "3"}
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "11"}  # the shell of salloc
BATCH = ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SLURM = ALLOCATION | {"SLURM_PROCID": "6", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
OWN = {"P4REDUCE_RANK": "7", "P4REDUCE_WORLD_SIZE": "12", "P4REDUCE_LOCAL_RANK": "4"}


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        (TORCHRUN, Placement(3, 8, 1)),
        (OPEN_MPI, Placement(4, 9, 2)),
        (MPICH, Placement(5, 10, 3)),
        (SLURM, Placement(6, 11, 0)),
        (OWN, Placement(7, 12, 4)),
        # torchrun and mpirun within a Slurm job, one for each node
        (SLURM | TORCHRUN, Placement(3, 8, 1)),
        (SLURM | OPEN_MPI, Placement(4, 9, 2)),
        (SLURM | {"SLURM_STEP_ID": "12"}, Placement(6, 11, 0)),
        # tasks that start ranks of their own, and what is said by hand in an allocation
        (SLURM | OWN, Placement(7, 12, 4)),
        (SLURM | {"P4REDUCE_RANK": "3", "P4REDUCE_WORLD_SIZE": "4"}, Placement(3, 4, 3)),
        (SLURM | {"P4REDUCE_WORLD_SIZE": "8"}, Placement(6, 8, 0)),
        (ALLOCATION | OWN, Placement(7, 12, 4)),
        (BATCH | OWN, Placement(7, 12, 4)),
        (BATCH | OPEN_MPI, Placement(4, 9, 2)),
        # the same said twice
        (TORCHRUN | {"P4REDUCE_RANK": "3", "P4REDUCE_WORLD_SIZE": "8"}, Placement(3, 8, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Placement(0, 1, 0)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Placement(1, 2, 1)),
    ],
)
def test_launchers(environ: dict[str, str], wanted: Placement) -> None:
    assert placement(None, None, environ) == wanted


def test_arguments_win() -> None:
    assert placement(0, 2, TORCHRUN) == Placement(0, 2, 1)
    assert placement(5, None, TORCHRUN) == Placement(5, 8, 1)
    assert placement(None, 4, TORCHRUN) == Placement(3, 4, 1)
    assert placement(1, 2, {}) == Placement(1, 2, 1)


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["rank=", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]),
        ({"RANK": "1"}, ["WORLD_SIZE"]),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, ["SLURM_PROCID"]),
        (ALLOCATION, ["no rank", "in this Slurm allocation, by srun"]),
        (BATCH, ["no rank", "in this Slurm allocation, by srun"]),
        # The steps of batch scripts and of salloc's interactive shell
        (BATCH | {"SLURM_STEP_ID": "4294967291"}, ["no rank", "by srun"]),
        (BATCH | {"SLURM_STEP_ID": "4294967290"}, ["no rank", "by srun"]),
        (BATCH | {"P4REDUCE_RANK": "0"}, ["P4REDUCE_WORLD_SIZE is not set"]),
        ({"RANK": "one", "WORLD_SIZE": "4"}, ["RANK='one'"]),
        ({"RANK": "4", "WORLD_SIZE": "4"}, ["rank 4", "world size 4", "0 to 3"]),
        ({"RANK": "0", "WORLD_SIZE": "4097"}, ["4097", "1 to 4096"]),
        (TORCHRUN | OWN, ["RANK=3", "P4REDUCE_RANK=7", "torchrun"]),
        (SLURM | {"P4REDUCE_WORLD_SIZE": "3"}, ["rank 6 does not fit world size 3"]),
    ],
)
def test_errors_name_the_variables(environ: dict[str, str], names: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        placement(None, None, environ)
    for name in names:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("environ", "placed"),
    [(ALLOCATION, False), (BATCH, False), (SLURM, True), (ALLOCATION | OWN, True), ({}, False)],
)
def test_an_allocation_places_no_process(environ: dict[str, str], placed: bool) -> None:
    assert is_placed(environ) == placed


def test_job_name() -> None:
    assert job_name("mine", {"P4REDUCE_JOB": "other"}) == "mine"
    assert job_name(None, {"P4REDUCE_JOB": "other", "SLURM_JOB_ID": "7"}) == "other"
    assert job_name(None, {"SLURM_JOB_ID": "7"}) == "7"
    assert job_name(None, {"TORCHELASTIC_RUN_ID": "r"}) == "r"
    assert job_name(None, {}) == "default"


def test_an_elastic_restart_is_another_job() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    assert job_name(None, torchrun) == "torchrun node0:29500"
    restarted = {**torchrun, "TORCHELASTIC_RESTART_COUNT": "2"}
    assert job_name(None, restarted) == "torchrun node0:29500, restart 2"
    named = {"P4REDUCE_JOB": "mine", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert job_name(None, named) == "mine"
    assert job_name(None, {**named, "TORCHELASTIC_RESTART_COUNT": "1"}) == "mine, restart 1"
