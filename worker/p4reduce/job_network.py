# SPDX-License-Identifier: Apache-2.0
"""A network that the ranks of a job start themselves, where their environment names none.

All ranks call `begin`. They exchange where they are, `arrangement` decides which hosts run a
switch, and the lowest rank of each such host starts it (`p4reduce_lab.deploy`, a process of its
own). Rank 0's also starts the controller. Ports, certificates and keys are exchanged the same way.
The network lasts as long as the ranks: each holds a connection to the process on its host.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_common.threads import new_thread

from p4reduce import variables
from p4reduce.arrangement import FIRST, SWITCHES, Host, hosts_with_switches, switch_names
from p4reduce.errors import ConfigurationError, LaunchError
from p4reduce.hosts import (
    address_towards,
    addresses_in,
    given_address,
    identity,
    is_loopback,
    source_address,
    this_host,
)
from p4reduce.inherited import keep_from_children
from p4reduce.launch import PORTS, Network, lease_of_environment, take_spare
from p4reduce.meeting import Exchange, agreed, connect_unix
from p4reduce.reach import check_p4runtime, check_ways
from p4reduce.session.session import fail_all
from p4reduce.wire.rank_sets import list_ranks

_LOOPBACK = "127.0.0.1"

_held: dict[str, JobNetwork] = {}


class JobNetwork:
    """A network that this rank has started with others.

    Attributes:
        identity: a name that no other network has.
        variables: the environment by which `p4reduce.init` finds it. They are this rank's alone,
            and contain secrets.
        address: the IP address by which other hosts reach this one; "" if there are none.
        text: what was started, for people.
        beside: whether the controller is on this host.
        own: the network's process, if this rank has started it.

    Args:
        identity: as above.
        given: `variables`.
        lifeline: a connection to it otherwise; None where this host runs no switch.
    """

    def __init__(
        self,
        identity: str,
        given: Mapping[str, str],
        address: str,
        text: str,
        beside: bool,
        own: Network | None,
        lifeline: socket.socket | None,
    ) -> None:
        self.identity = identity
        self.variables = given
        self.address = address
        self.text = text
        self.beside = beside
        self.own = own
        self._lifeline = lifeline
        self._uses = 1
        self._closed = False
        self._error: LaunchError | None = None
        _held[identity] = self
        if own is not None:
            own.when_ended(self._ended)
        elif lifeline is not None:
            keep_from_children(self)
            new_thread(self._watch, "p4reduce-network").start()

    @property
    def pids(self) -> Mapping[str, int]:
        """The processes that this rank has started; see `p4reduce.launch.Network`."""
        return {} if self.own is None else self.own.pids

    @property
    def news(self) -> tuple[str, ...]:
        """What happened to them since the start."""
        return () if self.own is None else self.own.news

    def check(self) -> None:
        """Raise LaunchError if the network has ended; the message says why."""
        if self._error is not None:
            raise copy.copy(self._error)

    def descriptors(self) -> Iterator[int]:
        """As `Holder`: a child that keeps it would keep the network."""
        if self._lifeline is not None:
            yield self._lifeline.fileno()

    def share(self) -> JobNetwork:
        """Return it for one more use, which `close` ends."""
        self._uses += 1
        return self

    def close(self) -> None:
        """Let go of the network, with the last use. It ends when no rank of the job needs it."""
        self._uses -= 1
        if self._uses:
            return
        self._closed = True
        _held.pop(self.identity, None)
        if self.own is not None:
            self.own.release()
        if self._lifeline is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._lifeline.shutdown(socket.SHUT_RDWR)  # and wakes the thread that reads

    def _watch(self) -> None:
        assert self._lifeline is not None
        said = b""
        try:
            while data := self._lifeline.recv(4096):
                said += data
        except OSError:
            pass
        self._lifeline.close()
        why = json.loads(said)["failed"] if said else "its process was killed"
        self._ended(LaunchError(f"the network has ended: {why}"))

    def of_group(self, beside: Sequence[int]) -> dict[str, str]:
        """Return `variables` for a group.

        Args:
            beside: the ranks of the group on the controller's host.
        """
        if not self.address:
            return dict(self.variables)  # all are on that host
        return {**self.variables, variables.BESIDE_CONTROLLER: ",".join(map(str, beside))}

    def _ended(self, error: LaunchError) -> None:
        if not self._closed:
            self._error = error
            _held.pop(self.identity, None)
            fail_all(self.variables[variables.CONTROLLER], error)


@dataclass(frozen=True)
class Started:
    """A network, as a group of ranks uses it.

    Attributes:
        variables: the environment by which `p4reduce.init` finds it, with secrets.
    """

    network: JobNetwork
    variables: Mapping[str, str]


def named(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a network, so that none is started."""
    environ = os.environ if environ is None else environ
    return any(environ.get(name) for name in (variables.CONTROLLER, variables.INTERFACE))


def begin(
    exchange: Exchange,
    rank: int,
    size: int,
    *,
    towards: Sequence[str] = (),
    lease: float = 0.0,
) -> Started | None:
    """Start a network for some ranks, or return one that all of them share already.

    All of them call it. Either all return, or all raise.

    Args:
        exchange: of the ranks.
        rank: of this process among them.
        size: their number.
        towards: names of another rank's host, best first; the interface that leads there is used.
        lease: seconds that a rank may be silent before it is lost. 0: those of `P4REDUCE_LEASE` in
            rank 0's environment, or 10.

    Returns:
        The network; None: the environment of all ranks names one.

    Raises:
        ConfigurationError: settings of ranks contradict each other, or a host has no address that
            the others can reach.
        LaunchError: it does not start; says what, and on which host.
        P4ReduceError: of `exchange`.
    """
    return _Beginning(exchange, rank, size).run(towards, lease)


class _Beginning:
    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._size = size

    def run(self, towards: Sequence[str], lease: float) -> Started | None:
        """Do all of it. Nothing of this rank's is left where it raises."""
        self._own = take_spare()
        joined = None
        try:
            joined = self._run(towards, lease)
        finally:
            if joined is None or joined.network.own is not self._own:
                self._let_go()
        return joined

    def _let_go(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _run(self, towards: Sequence[str], lease: float) -> Started | None:
        held = dict(_held)
        places = self._all(lambda: _place(towards, lease, held))
        if _all_alike(places, "named", f"{variables.CONTROLLER} or {variables.INTERFACE}"):
            return None
        own_key = _all_alike(places, "key", variables.UDP_KEY_FILE)
        own_tls = _all_alike(places, "tls", variables.TLS[0])
        if both := set.intersection(*(set(place["held"]) for place in places)):
            shared = held[min(both)]
            self._all(shared.check)  # it may have ended while ranks waited for each other
            beside = [n for n, place in enumerate(places) if place["held"][shared.identity]]
            return Started(shared.share(), shared.of_group(beside))
        hosts = _hosts(places)
        here = next(n for n, host in enumerate(hosts) if self._rank in host.ranks)
        if len(hosts) > 1:
            hosts = self._addressed(hosts, here, places)
        given = {place["switches"] for place in places if place["switches"]}
        if len(given) > 1:
            raise ConfigurationError(f"{SWITCHES} differs among ranks: {', '.join(sorted(given))}")
        wanted = "".join(given)
        if len(hosts) == 1 and wanted in addresses_in(places[0]["here"]):
            wanted = FIRST  # no other host needs its address, so it may have none
        chosen = hosts_with_switches(hosts, wanted)
        if chosen == (0,):
            network = self._on_one(hosts, here, places[0]["lease"])
        else:
            network = self._on_several(
                hosts, here, chosen, places[0]["lease"], own_key=own_key, own_tls=own_tls
            )
        return Started(network, network.of_group(hosts[0].ranks))

    def _ask(
        self, request: Mapping[str, Any], what: str, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Send a request to this host's process, and return its answer."""
        self._own = self._own or Network()
        self._own.send(request)
        meanwhile()
        answer: dict[str, Any] = self._own.answer()[what]
        return answer

    def _on_one(self, hosts: Sequence[Host], here: int, lease: float) -> JobNetwork:
        """All switches are on rank 0's host. `here` is the number of this rank's."""
        rank, starts = self._rank, self._rank == 0
        settings: dict[str, Any] = {"ranks": self._size, "lease": lease}
        settings |= {"host": hosts[0].address} if len(hosts) > 1 else {"unix": True}
        settings["ports"] = os.environ.get(PORTS, "")
        request = {"settings": settings, "job": True}
        ready = self._all(lambda: self._ask(request, "ready") if starts else {})[0]
        given = dict(ready["variables"])
        given[variables.INTERFACE] = given[variables.INTERFACE].format(rank=rank, port=rank + 1)
        lifeline = "" if here else ready["lifeline"]
        return self._joined(hosts, here, starts, given, ready["text"], lifeline)

    def _on_several(
        self,
        hosts: Sequence[Host],
        here: int,
        chosen: Sequence[int],
        lease: float,
        *,
        own_key: bool,
        own_tls: bool,
    ) -> JobNetwork:
        """Several hosts run a switch each, or one that is not rank 0's."""
        starts = self._rank == hosts[here].ranks[0] and (here == 0 or here in chosen)
        names = switch_names(hosts, chosen)
        share = {
            "ranks": self._size,
            "here": hosts[here].ranks,
            "host": here,
            "addresses": [host.address for host in hosts],
            "switches": names,
            "lease": lease,
            "ports": os.environ.get(PORTS, ""),
            "own_key": own_key,
            "own_tls": own_tls,
        }
        offers = self._all(lambda: self._ask({"share": share}, "offer") if starts else {})
        of_hosts = [offers[host.ranks[0]] for host in hosts]
        request = {"offers": of_hosts}

        def check() -> None:
            """Find a closed port before the controller gives up on its switch."""
            if here == 0:
                listening = zip(names[1:], of_hosts[1:], strict=True)
                elsewhere = {name: one["p4runtime"] for name, one in listening if name}
                check_p4runtime(elsewhere, hosts[0].address)

        ready = self._all(lambda: self._ask(request, "ready", check) if starts else {})[0]
        ways = [
            f"{name}={one['ports'][self._rank]}"
            for name, one in zip(names, of_hosts, strict=True)
            if name
        ]
        given = {
            **{name: os.environ[name] for name in variables.ALL if os.environ.get(name)},
            **of_hosts[0]["secrets"],
            **ready["variables"],
            variables.INTERFACE: ",".join(ways),
        }
        lifeline = of_hosts[here].get("lifeline", "")
        return self._joined(hosts, here, starts, given, ready["text"], lifeline)

    def _joined(
        self,
        hosts: Sequence[Host],
        here: int,
        starts: bool,
        given: Mapping[str, str],
        text: str,
        lifeline: str,
    ) -> JobNetwork:
        connection = None

        def connect() -> str:
            nonlocal connection
            if not starts and lifeline:
                connection = _connected(lifeline)
            if len(hosts) > 1:
                check_ways(given, hosts[here].address)
            return secrets.token_hex(8)

        try:
            name = self._all(connect)[0]
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        process = self._own if starts else None
        address = hosts[here].address if len(hosts) > 1 else ""
        return JobNetwork(name, given, address, text, here == 0, process, connection)

    def _addressed(
        self, hosts: Sequence[Host], here: int, places: Sequence[Mapping[str, Any]]
    ) -> list[Host]:
        """Return the hosts, all with an address that the others can reach."""
        if all(host.address for host in hosts):
            return list(hosts)
        others = [places[host.ranks[0]]["here"] for host in hosts if host is not hosts[here]]

        def find() -> str:
            # Containers that share a network, but no files, reach each other by loopback.
            return hosts[here].address or address_towards(others, this_host()) or _LOOPBACK

        addresses = self._all(find)
        return [Host(host.name, host.ranks, addresses[host.ranks[0]]) for host in hosts]

    def _all(self, work: Callable[[], Any]) -> list[Any]:
        return agreed(self._rank, self._exchange, work)


def _place(towards: Sequence[str], lease: float, held: Mapping[str, JobNetwork]) -> dict[str, Any]:
    """Return what the other ranks need to know of this one."""
    return {
        "host": _shared(),
        "here": this_host(),
        "name": socket.gethostname(),
        "address": _own_address(towards),
        "named": named(),
        "key": bool(os.environ.get(variables.UDP_KEY_FILE)),
        "tls": bool(os.environ.get(variables.TLS[0])),
        "switches": os.environ.get(SWITCHES, ""),
        "lease": lease or lease_of_environment(),
        "held": {name: network.beside for name, network in held.items()},
    }


def _own_address(towards: Sequence[str]) -> str:
    """Return this host's address as far as it is known without the others; "" if not."""
    if given := given_address():
        return given
    for name in towards:
        try:
            address = source_address(name)
        except OSError:
            continue
        if not is_loopback(address):
            return address
    return ""


def _shared() -> str:
    """Return what ranks have in common that can share sockets and memory, and no others.

    They have one kernel, one network, one user and one /tmp.
    """
    directory = Path("/tmp").stat()
    return f"{identity()} {os.getuid()} {directory.st_dev}.{directory.st_ino}"


def _all_alike(places: Sequence[Mapping[str, Any]], what: str, name: str) -> bool:
    """Return what all ranks say. Raises ConfigurationError that names those that differ."""
    having = [rank for rank, place in enumerate(places) if place[what]]
    if 0 < len(having) < len(places):
        lacking = [rank for rank in range(len(places)) if rank not in having]
        raise ConfigurationError(
            f"{name} is set for {list_ranks(having)} and not for {list_ranks(lacking)}: set it for "
            "all or for none"
        )
    return bool(having)


def _hosts(places: Sequence[Mapping[str, Any]]) -> list[Host]:
    """Return the hosts in the order of their first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place["host"], []).append(rank)
    return [
        Host(places[own[0]]["name"], tuple(own), places[own[0]]["address"])
        for own in ranks.values()
    ]


def _connected(path: str) -> socket.socket:
    try:
        return connect_unix(path)
    except OSError as error:
        raise LaunchError(f"the network of this host has ended: {path}: {error.strerror}") from None
