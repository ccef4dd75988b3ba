# SPDX-License-Identifier: Apache-2.0
"""The commands for the planner's proposal.

Names in capitals stand for what only the reader knows: the addresses of hosts. `train.py` is the
reader's script, and eth0, eth1 and so on are interfaces. Slots are the controller's default for all
jobs, so no script has to name them.
"""

from __future__ import annotations

from p4reduce_native.frame_lanes import FRAME_LANES, VARIABLE

from p4reduce_lab.planning.advice import Advice, Option
from p4reduce_lab.planning.network import LARGEST_FANOUT, SWITCHES

_TRIAL_RANKS = 8
_MOST_OF_EXEC = 8  # switches side by side
_TLS = "--tls-cert {0}.pem --tls-key {0}.key --tls-ca ca.pem"
_SWITCH_TLS = _TLS.replace("--", "--switch-").format("controller")
_WORKER_TLS = "P4REDUCE_TLS_CERT=worker.pem P4REDUCE_TLS_KEY=worker.key P4REDUCE_TLS_CA=ca.pem"
_HARDWARE = {
    SWITCHES[
        "hardware"
    ]: "# a switch of your own, which runs p4src/ and serves P4Runtime at port 9559",
    SWITCHES[
        "tofino2"
    ]: "# a Tofino 2 that runs p4src/tofino2.p4 and serves P4Runtime at port 9559; "
    "not yet tried on a chip (docs/tofino.md)",
}
_OTHERS = "FIRST is the first one's IP address, and --node-rank counts up from there"
_CERTIFICATES = "# Certificates: docs/security.md#tls"


def commands(advice: Advice, option: Option) -> list[str]:
    """Return lines for a shell: switches, controller and ranks; and a try on this machine.

    Args:
        advice: the planner's answer.
        option: one of its ways to sum; for the ring, the lines are those of one switch,
            or of a tree where one is not enough.
    """
    cluster = advice.question.cluster
    count = option.switches if "side by side" in option.name else 1
    several = f" --switches {min(count, _MOST_OF_EXEC)}" if count > 1 else ""
    if cluster.switch is SWITCHES["embedded-memory"]:
        ranks = min(cluster.ranks, LARGEST_FANOUT)
        return [f"p4reduce-lab exec -n {ranks}{several} -- python train.py"]
    if cluster.ranks > LARGEST_FANOUT or "tree" in option.name:
        lines = _tree(advice)
    elif cluster.switch is SWITCHES["embedded-udp"] and count == 1:
        lines = _deployed(advice)
    else:
        lines = _ByHand(advice, count).lines()
    ranks = min(cluster.ranks, _TRIAL_RANKS)
    trial = f"{_lanes(advice)}p4reduce-lab exec -n {ranks}{several} -- python train.py"
    return [*lines, "# A try on this machine:", trial]


def _lanes(advice: Advice) -> str:
    """What stands before a command, so that its frames are the switch's."""
    lanes = advice.question.cluster.switch.lanes
    return "" if lanes == FRAME_LANES else f"{VARIABLE}={lanes} "


def _deployed(advice: Advice) -> list[str]:
    return [
        "# On the switch's host, whose IP address is ADDRESS; stays until Ctrl-C:",
        f"p4reduce-lab deploy -n {advice.question.cluster.ranks} --host ADDRESS --switches 1 "
        f"--slots {advice.pool.slots} --variables net.sh",
        f"# On each rank's host, with a copy of net.sh; {_OTHERS}:",
        ". ./net.sh",
        _torchrun(advice),
    ]


def _tree(advice: Advice) -> list[str]:
    udp = advice.question.cluster.switch is SWITCHES["embedded-udp"]
    return [
        "# Start the tree's switches, and write their links to net.toml: docs/scale.md#two-racks",
        _CERTIFICATES,
        _controller(advice, f"--topology net.toml {_SWITCH_TLS}", "ADDRESS"),
        *_ranks(advice, "ADDRESS", "udp:LEAF:PORT" if udp else "eth0"),
    ]


def _controller(advice: Advice, where: str, host: str) -> str:
    # BMv2 queues 64 frames per port; the controller's own default fits that.
    bmv2 = advice.question.cluster.switch is SWITCHES["bmv2"]
    slots = "" if bmv2 else f" --default-slots {advice.pool.slots}"
    tls = _TLS.format("controller")
    start = f"{_lanes(advice)}p4reduce-controller serve"
    return f"{start} {where} --listen {host}:9600 {tls}{slots}"


def _ranks(advice: Advice, host: str, interface: str) -> list[str]:
    key = " P4REDUCE_UDP_KEY_FILE=udp.key" if "udp:" in interface else ""
    return [
        f"# On each rank's host; {_OTHERS}:",
        f"export {_lanes(advice)}P4REDUCE_CONTROLLER={host}:9600 "
        f"P4REDUCE_INTERFACE='{interface}'{key} {_WORKER_TLS}",
        _torchrun(advice),
    ]


def _torchrun(advice: Advice) -> str:
    return (
        f"torchrun --nnodes {advice.question.cluster.ranks} --node-rank 0 --nproc-per-node 1 "
        "--master-addr FIRST --master-port 29400 train.py"
    )


class _ByHand:
    """Switches side by side, each on a host of its own, with one controller on the first host.

    Ranks have an interface to each Ethernet switch. Where its host has one interface for all ranks,
    they share the switch's only port.
    """

    def __init__(self, advice: Advice, count: int) -> None:
        cluster = advice.question.cluster
        self._advice, self._kind = advice, cluster.switch
        self._hosts = ["ADDRESS", *(f"ADDRESS{number}" for number in range(2, count + 1))]
        self._names = [f"s{number}=" for number in range(count)] if count > 1 else [""]
        self._udp = cluster.switch is SWITCHES["embedded-udp"]
        ports = 1 if cluster.trunk is not None and not self._udp else cluster.ranks
        self._ports = "1" if ports == 1 else f"1-{ports}"
        self._interfaces = {port: f"eth{port}" for port in range(1, ports + 1)}
        # A controller and its only switch are on one host, where P4Runtime needs no certificates.
        self._hardware = _HARDWARE.get(self._kind, "")
        local = count == 1 and not self._hardware
        self._p4runtime = ["127.0.0.1"] if local else self._hosts
        self._tls = not local and self._kind is not SWITCHES["bmv2"]

    def lines(self) -> list[str]:
        """Return the lines of switches, controller and ranks."""
        several = f"each switch's host, ADDRESS to {self._hosts[-1]}:"
        at = "the switch's host, ADDRESS:" if len(self._hosts) == 1 else several
        lines = [_CERTIFICATES, f"# On {at}", self._switch()]
        places = zip(self._names, self._p4runtime, strict=True)
        where = [f"--switch {name}{address}:9559" for name, address in places]
        where += [f"--ports {self._ports}", *([_SWITCH_TLS] if self._tls else [])]
        lines += ["# On ADDRESS:", _controller(self._advice, " ".join(where), "ADDRESS")]
        return [*lines, *_ranks(self._advice, "ADDRESS", ",".join(self._rank_interfaces()))]

    def _rank_interfaces(self) -> list[str]:
        if self._udp:
            ways = [f"udp:{host}:7001+{{rank}}" for host in self._hosts]
        else:
            ways = [f"eth{number}" for number in range(len(self._hosts))]
        return [f"{name}{way}" for name, way in zip(self._names, ways, strict=True)]

    def _switch(self) -> str:
        """The line that starts a switch, the same on all hosts."""
        address = self._p4runtime[0] if len(self._hosts) == 1 else "0.0.0.0"
        if self._hardware:
            return self._hardware
        if self._kind is SWITCHES["bmv2"]:
            ports = " ".join(f"-i {port}@{name}" for port, name in self._interfaces.items())
            return (
                f"simple_switch_grpc --no-p4 --device-id 1 {ports} --log-console --log-level warn "
                f"-- --grpc-server-addr {address}:9559 --cpu-port 255 --drop-port 511"
            )
        ports = " ".join(f"--port {port}={name}" for port, name in self._interfaces.items())
        if self._udp:
            ports = f"--port {self._ports}=udp:0.0.0.0:7001 --udp-key-file udp.key"
        engine = " --engine python" if self._kind is SWITCHES["python"] else ""
        tls = f" {_TLS.format('switch')}" if self._tls else ""
        return f"p4reduce-switch {ports}{engine} --grpc-addr {address}:9559{tls}"
