# SPDX-License-Identifier: Apache-2.0
"""Which switch and which network a run uses, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from p4reduce_lab.errors import ArgumentsError, UnavailableError
from p4reduce_lab.networks import mininet_net
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import SwitchLauncher
from p4reduce_lab.units import rate_as_typed, rate_in_words

NAMES = {"embedded": "embedded switch", "bmv2": "BMv2 (simple_switch_grpc)"}
PLACES = {
    ("embedded", "local"): "workers on this machine, its ports are Unix sockets",
    ("bmv2", "local"): "workers on this machine, its ports are veth pairs",
    ("embedded", "mininet"): "workers on Mininet hosts",
    ("bmv2", "mininet"): "workers on Mininet hosts",
    ("embedded", "udp"): "workers on this machine, its ports are UDP sockets",
}


@dataclass(frozen=True)
class LabChoice:
    """The chosen switch and network.

    Attributes:
        switch: "embedded" or "bmv2".
        network: "local", "udp" or "mininet".
        why: The reason, for people.
        bandwidth: Of each link of a Mininet network, in Mbit/s; None: not limited.
        pcap: Whether the switch captures what its ports see.
        web: Whether each controller serves the live page.
        cores: How many data planes an embedded switch has.
    """

    switch: str
    network: str
    why: str
    bandwidth: float | None = None
    pcap: bool = False
    web: bool = False
    cores: int = 1

    @property
    def name(self) -> str:
        """The switch's name for people."""
        return NAMES[self.switch]

    @property
    def text(self) -> str:
        """The choice in one line."""
        place = PLACES[self.switch, self.network]
        if self.bandwidth is not None:
            place += f", links of {rate_in_words(self.bandwidth * 1e6)}"
        if self.cores > 1:
            place += f", {self.cores} cores"
        return f"{self.name}, {place} ({self.why})"

    def with_cores(self, cores: int) -> LabChoice:
        """Return the same choice with this many cores.

        Raises:
            ArgumentsError: the switch or the network has one core only.
        """
        if cores == 1:
            return self
        if self.switch != "embedded":
            raise ArgumentsError(f"--cores {cores} requires SWITCH=embedded: BMv2 has one core")
        if self.network == "mininet":
            raise ArgumentsError(
                f"--cores {cores} requires NET=local or NET=udp: Mininet's ports are interfaces"
            )
        return replace(self, cores=cores)

    def launcher(self, directory: Path, ports: Mapping[int, str]) -> SwitchLauncher:
        """Return the launcher: see :class:`~p4reduce_lab.switches.launch.SwitchLauncher`."""
        if self.switch == "bmv2":
            return Bmv2Switch(directory, ports, pcap=self.pcap)
        return EmbeddedSwitch(directory, ports, pcap=self.pcap, cores=self.cores)


def choose(
    switch: str,
    network: str,
    *,
    bandwidth: float | None = None,
    nearest_to_real: bool = False,
    only_mininet: bool = False,
) -> LabChoice:
    """Resolve "auto", and check that the choice can run here.

    Args:
        switch: "auto", "embedded" or "bmv2".
        network: "auto", "local", "udp" or "mininet".
        bandwidth: Mbit/s a link; only Mininet has any.
        nearest_to_real: What "auto" prefers: BMv2 and Mininet where they are installed, or else
            what needs nothing and starts at once.
        only_mininet: "auto" is Mininet, and "local" is refused: the lab's hosts are its.

    Raises:
        UnavailableError: it cannot; the message says what is missing.
        ArgumentsError: the arguments contradict each other.
    """
    if only_mininet:
        picked_network, why_network = _mininet_of_the_lab(network)
    else:
        picked_network, why_network = _pick_network(network, bandwidth, nearest_to_real)
    picked_switch, why_switch = _pick_switch(
        switch, picked_network, nearest_to_real and picked_network == "mininet"
    )
    why = "; ".join(reason for reason in (why_switch, why_network) if reason)
    return LabChoice(
        picked_switch,
        picked_network,
        why or "the default: runs everywhere, without root",
        bandwidth,
    )


def _mininet_of_the_lab(network: str) -> tuple[str, str]:
    """Return the only network that will do, and the reason."""
    if network in ("local", "udp"):
        raise ArgumentsError(
            f"NET={network} is not possible here: the lab is a Mininet network. Leave NET out, or "
            "see `p4reduce-lab up` for a switch without one"
        )
    if obstacle := mininet_net.unavailable():
        raise UnavailableError(f"the lab, a Mininet network, cannot run here: {obstacle}")
    return "mininet", "NET as asked" if network == "mininet" else "the lab is a Mininet network"


def _pick_network(network: str, bandwidth: float | None, nearest_to_real: bool) -> tuple[str, str]:
    """Return the network and the reason, which is empty where there is none to give."""
    limit = f"BW={rate_as_typed((bandwidth or 0.0) * 1e6)}"
    if network in ("local", "udp") and bandwidth is not None:
        raise ArgumentsError(f"{limit} needs NET=mininet: only its links can be limited")
    obstacle = mininet_net.unavailable()
    if network == "mininet" or bandwidth is not None:
        wish = "NET=mininet" if network == "mininet" else f"{limit}, for Mininet's links,"
        if obstacle:
            raise UnavailableError(f"{wish} cannot run here: {obstacle}")
        return "mininet", "NET as asked" if network == "mininet" else "BW needs Mininet"
    if network in ("local", "udp"):
        return network, "NET as asked"
    if not nearest_to_real:
        return "local", ""
    return ("local", f"no Mininet: {obstacle}") if obstacle else ("mininet", "Mininet is installed")


def _pick_switch(switch: str, network: str, wants_bmv2: bool) -> tuple[str, str]:
    """Return the switch and the reason, which is empty where there is none to give."""
    if network == "udp":
        if switch == "bmv2":
            raise ArgumentsError(
                "NET=udp requires SWITCH=embedded, not SWITCH=bmv2: BMv2 has no UDP ports"
            )
        return "embedded", "SWITCH as asked" if switch == "embedded" else ""
    obstacle = bmv2.unavailable()
    if switch == "bmv2" and obstacle:
        raise UnavailableError(f"SWITCH=bmv2 cannot run here: {obstacle}")
    if switch != "auto":
        return switch, "SWITCH as asked"
    if not wants_bmv2:
        return "embedded", ""
    return ("embedded", f"no BMv2: {obstacle}") if obstacle else ("bmv2", "BMv2 is installed")
