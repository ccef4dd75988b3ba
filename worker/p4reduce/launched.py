# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a launcher meet, to start a network: torchrun, mpirun, Slurm, or by hand.

Each launcher says something that all ranks know. With `MASTER_ADDR` and `MASTER_PORT`, rank 0
listens there; torchrun has a store there already. The ranks of one host meet at a Unix socket that
is named by the launcher's job. Slurm names the first node. mpirun on several hosts names none, and
then mpi4py has to be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from p4reduce_common.host_port import format_host_port

from p4reduce.environment import LAUNCHERS, Placement
from p4reduce.errors import ConfigurationError
from p4reduce.job_network import Started, begin
from p4reduce.launch import PORTS
from p4reduce.meeting import Exchange, SocketMeeting

_TORCHRUN = "TORCHELASTIC_RUN_ID"
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_PORTS = range(20_000, 32_000)  # below those that Linux gives out by itself
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID")
_PROXY = "hydra_pmi_proxy"  # MPICH's, one per job and host; it gives jobs no name
_ALL_HERE = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
)
_made: list[Started | None] = []  # by the first call, as on all ranks


def network_of_launcher(place: Placement, timeout: float) -> Started | None:
    """Start a network with all ranks of this process's launcher, or return the one of before.

    All ranks call it.

    Args:
        place: of this rank among all of them.
        timeout: seconds for the others to come.

    Returns:
        The network; None: no launcher says where to meet, or it says another rank or world size.

    Raises:
        ConfigurationError: there is no address to meet at; or as for `begin`.
        P4ReduceError: as for `begin`.
    """
    if not _made:
        if not _is_of_launcher(place):
            return None
        towards = [name for name in (os.environ.get(_MASTER[0]), _first_node()) if name]
        with _meeting(place, timeout) as exchange:
            _made.append(begin(exchange, place.rank, place.world_size, towards=towards))
    return _made[0]


def is_launched() -> bool:
    """Whether a launcher says where its ranks meet."""
    return all(map(os.environ.get, _MASTER)) or any(
        os.environ.get(one.world_size_name) for one in LAUNCHERS
    )


def _is_of_launcher(place: Placement) -> bool:
    said = [
        (os.environ.get(one.rank_name), os.environ.get(one.world_size_name))
        for one in LAUNCHERS
        if os.environ.get(one.world_size_name)
    ]
    here = (str(place.rank), str(place.world_size))
    return said[0] == here if said else all(map(os.environ.get, _MASTER))


@contextlib.contextmanager
def _meeting(place: Placement, timeout: float) -> Iterator[Exchange]:
    if _TORCHRUN in os.environ:
        # By its name: the library needs no PyTorch, but torchrun's ranks have it.
        yield import_module("p4reduce.torch.meeting").of_environment(timeout)
    elif address := _address():
        with SocketMeeting(address, place.rank, place.world_size, timeout) as meeting:
            yield meeting.exchange
    elif find_spec("mpi4py") is not None:
        yield import_module("mpi4py.MPI").COMM_WORLD.allgather
    else:
        raise ConfigurationError(
            "the ranks are on several hosts, and their launcher does not say where they can meet: "
            "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, the same "
            "on all ranks; or install mpi4py"
        )


def _address() -> str:
    """Return where rank 0 listens, which all ranks know; "" if the launcher does not say."""
    if all(map(os.environ.get, _MASTER)):
        return format_host_port(*(os.environ[name] for name in _MASTER))
    if is_on_one_host():
        return f"unix:{_private_directory() / _job()}"
    return format_host_port(node, _port()) if (node := _first_node()) else ""


def is_on_one_host() -> bool:
    """Whether the launcher says that all its ranks are on this host."""
    environ = os.environ
    if any(environ.get(local) == environ.get(total, "") != "" for local, total in _ALL_HERE):
        return True
    return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_JOB_NUM_NODES")) == "1"


def _first_node() -> str:
    """Return the first node of a Slurm step, where rank 0 is; "" without Slurm."""
    listed = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\]([^,]*))?", listed)
    return "".join(part or "" for part in match.groups()) if match else ""


def _job() -> str:
    """Return a file's name that all ranks of this job know, and no other job's."""
    known = [os.environ[name] for name in _JOBS if name in os.environ]
    known += [os.environ.get("SLURM_STEP_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")]
    known += [] if any(known) else [str(_launcher())]
    return f"meet-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}.sock"


def _launcher() -> int:
    """Return the process that started all ranks of this host: MPICH's proxy, or the parent.

    Between the proxy and a rank there may be shells.
    """
    parent = os.getppid()
    with contextlib.suppress(OSError):  # no Linux, or another user's
        while parent > 1:
            name, _, rest = Path(f"/proc/{parent}/stat").read_text().rpartition(")")
            if name.partition("(")[2] == _PROXY:
                return parent
            parent = int(rest.split()[1])
    return os.getppid()


def _port() -> int:
    """Return the TCP port where rank 0 listens, which all ranks know."""
    if match := re.match(r"(\d+)-", os.environ.get(PORTS, "")):
        return int(match[1])
    number = int(hashlib.sha256(_job().encode()).hexdigest(), 16)
    return _PORTS[number % len(_PORTS)]


def _private_directory() -> Path:
    directory = Path("/tmp", f"p4reduce-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(f"{directory} is not a directory of this user: remove it")
    return directory
