# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job: equal ones, or those of a host file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from p4reduce.arrangement import MOST_RANKS, Host
from p4reduce.hosts import is_loopback, source_address, this_host

from p4reduce_lab.errors import ArgumentsError

_ELSEWHERE = "192.0.2.1"  # RFC 5737: nobody's. Nothing is sent there; only the route counts
_COUNT = re.compile(r"(slots|max_slots|max-slots)=([0-9]+)")
_MPICH = re.compile(r"([^:]+):([0-9]+)")


def equal_hosts(count: int, each: int, address: str | None = None) -> tuple[Host, ...]:
    """Return hosts with as many ranks each.

    Args:
        count: how many, 2 or more.
        each: ranks of a host.
        address: of the first one; None: that of this host, or the word ADDRESS if it has none.

    Raises:
        ArgumentsError: they have too many ranks.
    """
    address = (own_address() or "ADDRESS") if address is None else address
    names = [(f"host {number + 1}", each) for number in range(count)]
    return _numbered(names, address, f"{count} hosts with {each} ranks each")


def read_host_file(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a host file, as mpirun and others read it.

    A line is `NAME`, `NAME slots=N` (Open MPI, Horovod, DeepSpeed) or `NAME:N` (MPICH). Without a
    number a host has one rank. A name that stands there again adds ranks. `#` begins a comment.

    Raises:
        ArgumentsError: it cannot be read, or a line is wrong; names the line.
    """
    ranks: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ArgumentsError(f"host file {path}: {why}") from None
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            name, own = _host(words, f"host file {path}, line {number}")
            ranks[name] = ranks.get(name, 0) + own
    if len(ranks) < 2:
        raise ArgumentsError(
            f"host file {path} has {len(ranks)} hosts, and a plan is for two or more; for ranks "
            "of one host: p4reduce-lab plan --ranks N --switch embedded-memory"
        )
    return _numbered(ranks.items(), next(iter(ranks)), f"host file {path}")


def own_address() -> str:
    """Return the IP address by which others reach this host; "" if there is none."""
    try:
        address = source_address(_ELSEWHERE)
        return "" if is_loopback(address) else address
    except OSError:  # no route leads out
        return next(iter(this_host().split()[2:]), "")


def _host(words: list[str], where: str) -> tuple[str, int]:
    name, *settings = words
    ranks = 1
    if match := _MPICH.fullmatch(name):  # an IPv6 address has more colons
        name, ranks = match[1], int(match[2])
    for setting in settings:
        match = _COUNT.fullmatch(setting)
        if match is None:
            raise ArgumentsError(f"{where}: {setting!r} is not slots=N; a line is `NAME slots=N`")
        if match[1] == "slots":
            ranks = int(match[2])
    if ranks < 1:
        raise ArgumentsError(f"{where}: {name} has {ranks} ranks; at least 1 is needed")
    return name, ranks


def _numbered(hosts: Iterable[tuple[str, int]], address: str, what: str) -> tuple[Host, ...]:
    found = list(_with_ranks(hosts, address))
    total = sum(len(host.ranks) for host in found)
    if total > MOST_RANKS:
        raise ArgumentsError(
            f"{what}: {total} ranks, and one switch has {MOST_RANKS} at most; for a tree of "
            f"switches: p4reduce-lab plan --ranks {total}"
        )
    return tuple(found)


def _with_ranks(hosts: Iterable[tuple[str, int]], address: str) -> Iterator[Host]:
    first = 0
    for name, own in hosts:
        yield Host(name, tuple(range(first, first + own)), "" if first else address)
        first += own
