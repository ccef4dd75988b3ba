# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a job run a switch, and its name: decided here, for all that start a network.

On one host its ranks share one switch, by shared memory. On several hosts each runs a switch, which
sums its share of the blocks: no host's link carries more than with a ring, and no host is spare.
How many switches a single host runs, and whether they are a tree, is for the network on that host
(`p4reduce_lab.deploy.arrangement`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce.errors import ConfigurationError

SWITCHES = "P4REDUCE_SWITCHES"
EACH, FIRST = "each", "first"
MOST_SWITCHES = 16
"""Side by side, of one job."""
MOST_RANKS = 64
"""Of one switch."""
_NAME = 30  # characters of a switch's name, of 40


@dataclass(frozen=True)
class Host:
    """A host of a job.

    Attributes:
        name: for people.
        ranks: those on it, ascending.
        address: the IP address by which the other hosts reach it; "" if there are none.
    """

    name: str
    ranks: tuple[int, ...]
    address: str = ""


def hosts_with_switches(hosts: Sequence[Host], wanted: str = "") -> tuple[int, ...]:
    """Return the numbers of the hosts that run a switch, ascending.

    Args:
        hosts: of the job, that of rank 0 first.
        wanted: "each", which of more than 16 hosts means the first 16; "first"; or names or
            addresses of some hosts, with commas between them. "": each, or the first where more
            than 64 ranks take a tree of switches.

    Raises:
        ConfigurationError: `wanted` is none of these, or too many hosts or ranks.
    """
    ranks = sum(len(host.ranks) for host in hosts)
    if wanted in ("", EACH):
        if wanted and ranks > MOST_RANKS:
            raise ConfigurationError(_refused(wanted, f"{ranks} ranks", f"{MOST_RANKS} at most"))
        several = ranks <= MOST_RANKS
        return tuple(range(min(len(hosts), MOST_SWITCHES))) if several else (0,)
    if wanted == FIRST:
        return (0,)
    numbers = set()
    for text in wanted.split(","):
        number = next((n for n, host in enumerate(hosts) if _is(host, text.strip())), None)
        if number is None:
            known = ", ".join(host.address or host.name for host in hosts)
            raise ConfigurationError(
                f"{SWITCHES}={wanted!r}: {text!r} is neither {EACH!r} nor {FIRST!r}, and no "
                f"address of a host of this job; they are {known}"
            )
        numbers.add(number)
    if len(numbers) > MOST_SWITCHES:
        raise ConfigurationError(_refused(wanted, f"{len(numbers)} hosts", f"{MOST_SWITCHES}"))
    if len(numbers) > 1 and ranks > MOST_RANKS:
        raise ConfigurationError(_refused(wanted, f"{ranks} ranks", f"{MOST_RANKS} at most"))
    return tuple(sorted(numbers))


def switch_names(hosts: Sequence[Host], chosen: Sequence[int]) -> list[str]:
    """Return each host's switch's name, for people and the controller; "" where there is none."""
    names = list[str]()
    for number, host in enumerate(hosts):
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in host.name)
        name = name.lstrip("-_")[:_NAME] or "host"
        if [one.name for one in hosts].count(host.name) > 1:
            name = f"{name}-{number + 1}"
        while name in names:
            name = f"{name}-{number + 1}"
        names.append(name)
    return [name if number in chosen else "" for number, name in enumerate(names)]


def _is(host: Host, text: str) -> bool:
    if text == host.name:
        return True
    try:
        return ipaddress.ip_address(text) == ipaddress.ip_address(host.address)
    except ValueError:
        return False


def _refused(wanted: str, what: str, most: str) -> str:
    return f"{SWITCHES}={wanted!r}: the job has {what}, and switches side by side take {most}"
