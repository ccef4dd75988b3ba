# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of all contenders on one network, which they then use in turns."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.compare.backends import STORE_VARIABLE
from p4reduce_lab.compare.cells import GLOO, MPI, P4REDUCE
from p4reduce_lab.compare.contenders import ContenderRanks
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks import links
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE
from p4reduce_lab.networks.routed import RoutedNetwork
from p4reduce_lab.networks.shaped import ShapedNetwork
from p4reduce_lab.processes.children import Processes
from p4reduce_lab.processes.threads import single_thread_variables
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.topology import LabTopology

Network = ShapedNetwork | RoutedNetwork

STARTING = 120.0  # seconds; torch alone takes several to import, for each rank
_NEEDS = {
    GLOO: ("torch", "PyTorch: pip install 'p4reduce[torch]'"),
    MPI: ("mpi4py", "mpi4py and Open MPI: apt-get install openmpi-bin, pip install mpi4py"),
}


def missing(contender: str) -> str | None:
    """Return what a contender lacks on this machine, and how to get it; None if nothing."""
    if contender not in _NEEDS:
        return None
    module, what = _NEEDS[contender]
    if importlib.util.find_spec(module) is None:
        return what
    if contender == MPI and shutil.which("mpirun") is None:
        return what
    return None


@contextmanager
def started(
    contenders: Sequence[str],
    choice: LabChoice,
    ranks: int,
    network: Network | None,
    directory: Path,
) -> Iterator[Mapping[str, ContenderRanks]]:
    """Start a switch with its controller, and the ranks of each contender.

    Args:
        contenders: whose; all that they need has to be there.
        choice: which switch.
        ranks: how many each has.
        network: where; None: on this machine, without links.
        directory: a short path, for sockets and logs.

    Raises:
        LabError: something did not start; has the end of its log.
    """
    with ExitStack() as stack:
        system: System | None = None
        if P4REDUCE in contenders:
            system = System(choice, directory, directory, LabTopology.side_by_side(ranks), network)
            stack.enter_context(system)
            system.start()
            system.wait_ready()
        processes = stack.enter_context(Processes())

        def check() -> None:
            processes.check()
            if system is not None:
                system.processes.check()

        groups = {}
        for contender in contenders:
            switch = None
            if contender == P4REDUCE and system is not None:
                switch = system.switch_pid
            group = stack.enter_context(
                ContenderRanks(contender, directory / f"{contender}.sock", ranks, check, switch)
            )
            groups[contender] = group
            _start(contender, group, ranks, network, system, processes, directory)
            # One after the other: on few cores all at once would take as long, and time out.
            group.gather(STARTING)
        yield groups


def _start(
    contender: str,
    group: ContenderRanks,
    ranks: int,
    network: Network | None,
    system: System | None,
    processes: Processes,
    directory: Path,
) -> None:
    if contender == MPI:
        _start_mpi(group, ranks, network, processes, directory)
        return
    for rank in range(ranks):
        command = _command(contender, group, network)
        command += ["--rank", str(rank), "--ranks", str(ranks)]
        variables = rank_variables(rank, ranks)
        if contender == P4REDUCE:
            assert system is not None
            variables |= system.variables()
        else:
            variables[STORE_VARIABLE] = str(directory / "store")
            variables["GLOO_SOCKET_IFNAME"] = "lo" if network is None else network.tcp_interface
        prefix = [] if network is None else network.prefix(rank)
        log = directory / f"{contender}-rank-{rank}.log"
        whole = [*prefix, *command]
        processes.start(f"{contender} rank {rank}", whole, log=log, environment=variables)


def _command(contender: str, group: ContenderRanks, network: Network | None) -> list[str]:
    command = [sys.executable, "-m", "p4reduce_lab.compare.rank", contender, str(group.path)]
    if network is None:
        return command
    goes_by = HOST_INTERFACE if contender == P4REDUCE else network.tcp_interface
    return [*command, "--interface", goes_by]


def _start_mpi(
    group: ContenderRanks,
    ranks: int,
    network: Network | None,
    processes: Processes,
    directory: Path,
) -> None:
    """By mpirun: on this machine as it is, or with a daemon of its own in each namespace."""
    command = ["mpirun", "--allow-run-as-root", "-n", str(ranks)]
    # A rank that has nothing to do must not take a core from the others.
    command += ["--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"]
    command += ["--mca", "orte_tmpdir_base", str(directory)]
    if network is None:
        command += ["--oversubscribe"]
    else:
        agent = directory / "agent"
        agent.write_text(_agent(network, ranks))
        agent.chmod(0o700)
        interfaces = ["btl_tcp_if_include", "oob_tcp_if_include"]
        hosts = ",".join(str(network.tcp_address(rank).ip) for rank in range(ranks))
        command += ["--host", hosts, "--map-by", "node", "--mca", "plm_rsh_agent", str(agent)]
        command += ["--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "btl", "tcp,self"]
        command += ["--mca", "pml", "ob1"]
        for name in interfaces:
            command += ["--mca", name, network.tcp_interface]
        # mpirun has to be in the network too: with rank 0.
        command = [*network.prefix(0), *command]
    variables = {**single_thread_variables(), "PYTHONUNBUFFERED": "1"}
    for name in ("PYTHONPATH", "PATH"):
        if name in os.environ:
            command += ["-x", name]
    whole = [*command, *_command(MPI, group, network)]
    processes.start("mpirun", whole, log=directory / "mpirun.log", environment=variables)


def _agent(network: Network, ranks: int) -> str:
    """What mpirun starts its daemons by, in place of ssh: a namespace is a host."""
    cases = "\n".join(
        f'  {network.tcp_address(rank).ip}) exec {" ".join(network.prefix(rank))} sh -c "$*" ;;'
        for rank in range(ranks)
    )
    return (
        '#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n'
        f'{cases}\n  *) echo "no such rank: $host" >&2; exit 1 ;;\nesac\n'
    )


def check_possible(contenders: Sequence[str], linked: bool) -> None:
    """Refuse what cannot run here. Raises UnavailableError, which says what is missing."""
    for contender in contenders:
        if (what := missing(contender)) is not None:
            raise UnavailableError(f"{contender} requires {what}")
    if linked and (reason := links.unavailable()) is not None:
        raise UnavailableError(f"links of a limited rate are not available here: {reason}")
