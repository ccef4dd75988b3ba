# SPDX-License-Identifier: Apache-2.0
"""Every environment variable that p4reduce reads: the table of docs/environment.md."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.transport.registry import PORT_TYPES
from p4reduce_native.link import UNIX_KINDS

__all__ = ["VARIABLES", "Variable"]


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        name: as it is set.
        group: of the table: who reads it.
        value: what it may hold.
        meaning: what it does, and what holds without it.
    """

    name: str
    group: str
    value: str
    meaning: str


_PLACE = "Place of a rank"
_WAY = "The way to the switch"
_CALLS = "Collectives"
_SECRETS = "TLS, tokens and keys"
_MACHINE_CODE = "Machine code"
_SERVICES = "Controller and lab"

VARIABLES = (
    Variable("P4REDUCE_RANK", _PLACE, "0 to world size - 1",
             "This process's rank. Default: what torchrun, Open MPI, MPICH or Slurm set."),
    Variable("P4REDUCE_WORLD_SIZE", _PLACE, "1 to 4,096",
             "Ranks of the job. Default: as above."),
    Variable("P4REDUCE_LOCAL_RANK", _PLACE, "a number",
             "The rank within this host. Default: as above, else the rank itself."),
    Variable("P4REDUCE_JOB", _PLACE, "a name",
             "The job to join. Default: the id of torchrun or Slurm, else `default`."),
    Variable("P4REDUCE_CONTROLLER", _WAY, "`unix:PATH` or `HOST:PORT`",
             "The controller. Default: the ranks of a launcher start a network; else "
             "`$XDG_RUNTIME_DIR/p4reduce/controller.sock`, or "
             "`/tmp/p4reduce-UID/controller.sock` if that directory is not this user's own."),
    Variable("P4REDUCE_GRPC_PROXY", _WAY, "`0` or `1`",
             "Whether gRPC uses the proxy of `http_proxy` or `https_proxy`. Default: 0."),
    Variable("P4REDUCE_INTERFACE", _WAY,
             ", ".join(f"`{kind.form}`" for kind in reversed(PORT_TYPES)),
             "The port of the switch. `{rank}`, `{local_rank}` and `{port}` are filled in. "
             "`,offload` behind an interface's name: packets have many frames. "
             "Required with P4REDUCE_CONTROLLER, unless `init(interface=…)` gives it."),
    Variable("P4REDUCE_FIRST_PORT", _WAY, "a port number",
             "The switch's port of rank 0, for `{port}`; the others follow. Default: 1."),
    Variable("P4REDUCE_HOST", _WAY, "an IP address",
             "This host's address for ranks on other hosts, where the ranks start the network. "
             "Default: that of the interface towards MASTER_ADDR or another host."),
    Variable("P4REDUCE_SWITCHES", _WAY, "`each`, `first` or addresses",
             "Which hosts run a switch, where the ranks start the network. Addresses of hosts "
             "have commas between them. Default: each; the first with more than 64 ranks."),
    Variable("P4REDUCE_PORTS", _WAY, "`7000-7063`",
             "The UDP and TCP ports of a network that the ranks, `launch.start` or "
             "`p4reduce-lab deploy` starts. Read on each host. Default: any free ones."),
    Variable("P4REDUCE_BESIDE_CONTROLLER", _WAY, "ranks: `0,1`",
             "The ranks on the controller's host. They count as lost if it does not answer for two "
             "leases. Default: none, or those of a network that the ranks start."),
    Variable("P4REDUCE_LEASE", _WAY, "seconds, 0.1 to 86,400",
             "How long a rank may be silent before it is lost, in a network that an engine, "
             "`launch.start` or `p4reduce-lab deploy` starts. Read on the switch's host. "
             "Default: 10."),
    Variable("P4REDUCE_LINK", _WAY, " or ".join(f"`{kind.name.lower()}`" for kind in UNIX_KINDS),
             "The fastest kind of link to negotiate on a Unix socket. Default: `shared`."),
    Variable("P4REDUCE_RING_ADDRESS", _WAY, "`HOST` or `HOST:PORT`",
             "Where other ranks reach this one for `init(fallback=\"ring\")`. "
             "Default: the interface's address."),
    Variable("P4REDUCE_LANES", _WAY, "`64` or `256`",
             "Lanes of 32 bits in a frame. The same for switch, controller and all ranks; 64 is "
             "what Tofino 2 sums. Default: 256."),
    Variable("P4REDUCE_FAULTS", _WAY, "`drop=0.01,seed=7`",
             "Injects faults into this rank's frames, for tests. Default: none."),
    Variable("P4REDUCE_URGENT_SLOTS", _CALLS, "0 to 1,023; up to 7 numbers",
             "Slots kept for collectives of priority 1, or 1, 2 and so on: \"32,32\". Default: 0."),
    Variable("P4REDUCE_CHECK_SHAPES", _CALLS, "`0` or `1`",
             "Whether ranks must agree on shapes. Default: 1."),
    Variable("P4REDUCE_SPANS", _CALLS, "`0` or `1`",
             "Whether collectives are recorded as OpenTelemetry spans. Default: 0."),
    Variable("P4REDUCE_MPI_TIMEOUT", _CALLS, "seconds",
             "With the preloaded library: how long a sum waits for slow ranks. Default: 1,800."),
    Variable("P4REDUCE_MPI_TYPES", _CALLS, "some of `float,double,int`",
             "What MPI programs sum by the switch. Default: all three."),
    Variable("P4REDUCE_TOKEN", _SECRETS, "a token",
             "The job's token, for ranks and for the command line. Default: none."),
    Variable("P4REDUCE_TLS_CERT", _SECRETS, "a path, or PEM text",
             "The certificate for the control API. Default: no TLS."),
    Variable("P4REDUCE_TLS_KEY", _SECRETS, "a path, or PEM text", "The certificate's key."),
    Variable("P4REDUCE_TLS_CA", _SECRETS, "a path, or PEM text",
             "The CA of the other side's certificate."),
    Variable("P4REDUCE_UDP_KEY_FILE", _SECRETS, "a path",
             "The key that UDP ports of switch and ranks share."),
    Variable("P4REDUCE_UDP_KEY", _SECRETS, "the key itself",
             "The same for hosts and containers that share no files."),
    Variable("P4REDUCE_CACHE_DIR", _MACHINE_CODE, "a directory",
             "Where compiled code is kept. Default: `$XDG_CACHE_HOME/p4reduce`, or in `~/.cache`."),
    Variable("P4REDUCE_CFLAGS", _MACHINE_CODE, "options of the C compiler",
             "Added to ours, for a sanitizer say. Default: none."),
    Variable("P4REDUCE_WHEEL_FOR", _MACHINE_CODE, "`x86_64` or `aarch64`",
             "When a wheel is built: compile for that machine and glibc 2.28."),
    Variable("P4REDUCE_STATE_DIR", _SERVICES, "a directory",
             "Where the controller keeps its state. Default: `~/.local/state/p4reduce`."),
)  # fmt: skip
"""Every variable, by group."""
