# SPDX-License-Identifier: Apache-2.0
"""A host's share of a network with a switch on several hosts, and on the first the controller.

The process of each host offers what it has: ports, and on the first host the secrets. The ranks
pass all offers on to all hosts, and each process then starts its part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce import variables
from p4reduce_common.host_port import format_host_port

from p4reduce_lab.deploy.credentials import make_key, make_token, write_private
from p4reduce_lab.deploy.ports import FreePorts
from p4reduce_lab.services import Parts, serve_options
from p4reduce_lab.switches.embedded import EmbeddedSwitch, TlsPaths, tls_options

_FILES = ("host.pem", "host.key", "hosts-ca.pem")
_MOST_QUEUED = 192
"""Frames that all ranks away from a switch have in flight to its host's link. They may come at
once: 212 KB, where a small Ethernet switch has 256 KiB for all links."""
_LEAST_SLOTS = 32  # also where that is more than 192 frames, as it is from 7 ranks on
Offer = Mapping[str, Any]


@dataclass(frozen=True)
class NetworkShare:
    """What the ranks of a job ask the process of a host for.

    Attributes:
        ranks: of the job, on all hosts.
        here: those on this host.
        host: number of this host; the controller is on host 0.
        addresses: IP address of each host.
        switches: name of each host's switch; "" where there is none.
        lease: seconds; 0: the default.
        ports: a range like "7000-7063" for all ports; "": any.
        own_key, own_tls: whether all hosts' environment has a key, or certificates, to use.
    """

    ranks: int
    here: Sequence[int]
    host: int
    addresses: Sequence[str]
    switches: Sequence[str]
    lease: float = 0.0
    ports: str = ""
    own_key: bool = False
    own_tls: bool = False


def slots_of_a_job(away: int) -> str:
    """Return how many slots a job gets for which a network is started, as `serve` takes it.

    Args:
        away: ranks that a switch is reached by over its host's link.
    """
    if not away:
        return "auto"
    return str(min(int(EmbeddedSwitch.slots), max(_LEAST_SLOTS, _MOST_QUEUED // away)))


class HostShare:
    """Makes an offer, and then the parts of this host.

    Args:
        share: of the job.
        directory: a private one with a short path, for sockets, keys and state.

    Raises:
        LabError: ports are not free, or something is missing.
    """

    def __init__(self, share: NetworkShare, directory: Path) -> None:
        self._share = share
        self._directory = directory
        self._address = share.addresses[share.host]
        self._free = FreePorts(self._address, share.ports)
        self._name = share.switches[share.host]
        self._ports: dict[int, str] = {}
        self._listen = ""
        if self._name:
            away = [rank for rank in range(share.ranks) if rank not in share.here]
            udp = dict(zip(away, self._free.udp(len(away)), strict=True))
            for rank in range(share.ranks):
                self._ports[rank + 1] = (
                    f"unix:{directory}/port{rank + 1}.sock"
                    if rank in share.here
                    else f"udp:{format_host_port(self._address, udp[rank])}"
                )
            if share.host:
                self._listen = format_host_port(self._address, self._free.tcp())

    def offer(self) -> dict[str, Any]:
        """Return what the other hosts and the ranks need to know."""
        offer: dict[str, Any] = {"ports": list(self._ports.values()), "p4runtime": self._listen}
        if self._share.host == 0:
            offer["secrets"] = self._secrets()
            offer["controller"] = format_host_port(self._address, self._free.tcp())
        return offer

    def parts(self, offers: Sequence[Offer]) -> Parts:
        """Return this host's parts.

        Args:
            offers: of all hosts.
        """
        share, directory = self._share, self._directory
        secrets = offers[0]["secrets"]
        key_file = directory / "udp.key"
        if share.own_key:
            key_file = Path(os.environ[variables.UDP_KEY_FILE])
        elif share.host:
            write_private(key_file, secrets[variables.UDP_KEY])
        tls = self._tls(secrets)
        switches = {}
        if self._name:
            own = directory / self._name
            own.mkdir()
            switches[self._name] = EmbeddedSwitch(
                own, self._ports, key_file=key_file, listen=self._listen, tls=tls
            )
        count = sum(map(bool, share.switches))
        text = f"{count} switches side by side" if count > 1 else "one switch"
        text += f" for {share.ranks} ranks on {len(share.addresses)} hosts"
        serve = self._serve(switches, offers, tls) if share.host == 0 else []
        known = {variables.CONTROLLER: offers[0]["controller"]}
        return Parts(text, switches, serve, known, tls)

    def _serve(
        self, switches: Mapping[str, EmbeddedSwitch], offers: Sequence[Offer], tls: TlsPaths
    ) -> list[str]:
        share = self._share
        away = [sum(port.startswith("udp:") for port in offer["ports"]) for offer in offers]
        slots = slots_of_a_job(max(away))
        listen = str(offers[0]["controller"])
        serve = serve_options(listen, slots=slots, lease=share.lease, tls=tls)
        serve += [*tls_options("--switch-tls", tls), "--ports", f"1-{share.ranks}"]
        for name, offer in zip(share.switches, offers, strict=True):
            if name in switches:
                serve += ["--switch", f"{name}={switches[name].grpc_address}"]
            elif name:
                serve += ["--switch", f"{name}={offer['p4runtime']}"]
        return serve

    def _secrets(self) -> dict[str, str]:
        share = self._share
        secrets = {variables.TOKEN: make_token()}
        if not share.own_key:
            _, secrets[variables.UDP_KEY] = make_key(self._directory)
        if not share.own_tls:
            from p4reduce_lab.deploy.certificates import make_certificates

            hosts = list(dict.fromkeys(share.addresses))
            secrets |= make_certificates(self._directory, hosts, alike=True).variables
        return secrets

    def _tls(self, secrets: Mapping[str, str]) -> TlsPaths:
        given = os.environ if self._share.own_tls else secrets
        files = []
        for name, file in zip(variables.TLS, _FILES, strict=True):
            text = given[name]
            if text.startswith("-----BEGIN "):
                write_private(self._directory / file, text)
                files.append(self._directory / file)
            else:
                files.append(Path(text))
        cert, key, ca = files
        return cert, key, ca
