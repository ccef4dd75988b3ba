# SPDX-License-Identifier: Apache-2.0
"""What the networks of a comparison share: links of a limited rate, and TCP settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from p4reduce_lab.errors import LabError
from p4reduce_lab.networks import namespaces
from p4reduce_lab.networks.namespaces import run
from p4reduce_lab.units import rate_as_typed

RATES = (0.1, 10_000.0)  # Mbit/s; least and greatest
QUEUE_BYTES = 256 << 10  # what a link's queue holds, in each direction
_TOOLS = {**namespaces.TOOLS, "tc": "iproute2", "ethtool": "ethtool"}
_TICK = 1e-3  # seconds; a bucket holds what its link moves in that time, and two frames at least
_LEAST_BURST = 2 * 1514


def unavailable() -> str | None:
    """Return why such a network is impossible here, and what to do; None if it is possible."""
    return namespaces.unavailable(_TOOLS)


def check_rate(rate: float) -> None:
    """Refuse a rate that no link can have. Raises LabError."""
    if not RATES[0] <= rate <= RATES[1]:
        least, most = (rate_as_typed(end * 1e6) for end in RATES)
        raise LabError(f"a rate of {rate_as_typed(rate * 1e6)}; it must be {least} to {most}")


def set_rate(ends: Iterable[tuple[Sequence[str], str]], rate: float | None) -> None:
    """Limit the rate at both ends of links.

    Args:
        ends: per end, the prefix that runs a command in its namespace, and the interface.
        rate: Mbit/s of whole Ethernet frames; None: no limit.

    Raises:
        LabError: the rate is out of range, or the kernel refuses it.
    """
    if rate is not None:
        check_rate(rate)
    for prefix, interface in ends:
        if rate is not None:
            _limit(prefix, interface, rate)
        elif "tbf" in _discipline(prefix, interface):
            run([*prefix, "tc", "qdisc", "delete", "dev", interface, "root"])


def _limit(prefix: Sequence[str], interface: str, rate: float) -> None:
    """By a token bucket (tc-tbf)."""
    burst = max(_LEAST_BURST, round(rate * 1e6 / 8 * _TICK))
    shape = ["root", "tbf", "rate", f"{round(rate * 1e6)}bit"]
    shape += ["burst", str(burst), "limit", str(max(QUEUE_BYTES, burst))]
    run([*prefix, "tc", "qdisc", "replace", "dev", interface, *shape])
    shown = _discipline(prefix, interface)
    if "tbf" not in shown:
        raise LabError(
            f"{interface} could not be limited to {rate:g} Mbit/s (this kernel may lack "
            f"the tbf scheduler); tc says: {shown.strip()}"
        )


def _discipline(prefix: Sequence[str], interface: str) -> str:
    return run([*prefix, "tc", "qdisc", "show", "dev", interface])


def set_congestion(prefixes: Sequence[Sequence[str]], wanted: str | None) -> str:
    """Choose TCP's congestion control in some namespaces, and return what they have.

    Args:
        prefixes: commands that run another one in each namespace.
        wanted: its name; None: as this machine has it.

    Raises:
        LabError: this kernel has none of that name, or it cannot be chosen here.
    """
    name = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    found = ""
    for prefix in prefixes:
        if wanted is not None:
            try:
                run([*prefix, "sh", "-c", f'echo "$0" > {name}', wanted])
            except LabError:
                available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
                known = available.read_text().split()
                if wanted in known:
                    raise  # in some containers /proc/sys cannot be written to
                raise LabError(
                    f"this kernel has no TCP congestion control {wanted!r}; "
                    f"it has {' '.join(known)}"
                ) from None
        found = run([*prefix, "cat", str(name)]).strip()
    return found
