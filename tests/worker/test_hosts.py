# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a host, whatever the hosts are called."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest
from p4reduce.errors import ConfigurationError
from p4reduce.hosts import address_towards, identity, this_host

NAMES = ("localhost", "worker", socket.gethostname())
TOLD = "from p4reduce.hosts import this_host; print(this_host('worker'))"


@pytest.fixture(autouse=True)
def not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_HOST", raising=False)


def told_in(*prefix: str) -> str:
    command = [*prefix, sys.executable, "-c", TOLD]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_processes_of_one_host_need_no_address(name: str) -> None:
    assert address_towards([this_host(name), told_in(), this_host("alias")], this_host(name)) == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, unshare")
def test_two_network_namespaces_are_two_hosts() -> None:
    there = told_in("unshare", "--net")
    assert there.split()[1] != identity()
    with pytest.raises(ConfigurationError, match=r"they have the same name.*set P4REDUCE_HOST"):
        address_towards([this_host("worker"), there], this_host("worker"))


@pytest.mark.parametrize("name", NAMES)
def test_hosts_of_one_name_meet_at_their_addresses(name: str) -> None:
    """The first of the other's addresses that this one does not have, too: no container bridge."""
    mine = f"{name} boot/1 172.17.0.1 10.0.0.1"
    there = f"{name} boot/2 172.17.0.1 127.0.0.9 192.0.2.7"
    try:
        address = address_towards([mine, there], mine)
    except ConfigurationError as error:
        # No route leads to other networks from here.
        assert "192.0.2.7" in str(error)  # noqa: PT017
        assert f"this host ({name}) for {name}" in str(error)  # noqa: PT017
    else:
        assert not address.startswith("127.")


def test_what_leads_nowhere_is_named() -> None:
    mine = "worker boot/1 10.0.0.1"
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.9 leads to 127\.0\.0\.1, which is"):
        address_towards([mine, "worker boot/2 127.0.0.9"], mine)
    with pytest.raises(ConfigurationError, match=r"no\.such\.host\.invalid: "):
        address_towards([mine, "no.such.host.invalid boot/2"], mine)


def test_names_alone_tell_hosts_where_an_engine_knows_no_more() -> None:
    assert address_towards(["a", "a"], "a") == ""
    with pytest.raises(ConfigurationError, match=r"this host \(a\) for localhost: localhost leads"):
        address_towards(["a", "localhost"], "a")


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_HOST", "127.0.0.5")
    assert address_towards(["x 1", "x 2"], "x 1") == "127.0.0.5"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("192.0.2.1", r"P4REDUCE_HOST=192\.0\.2\.1 is not an address of this host"),
        ("2001:db8::1", "P4REDUCE_HOST=2001:db8::1 is not an address of this host"),
        ("0.0.0.0", r"P4REDUCE_HOST=0\.0\.0\.0 is not an address of this host"),
        ("::", "P4REDUCE_HOST=:: is not an address of this host"),
        ("224.0.0.1", r"P4REDUCE_HOST=224\.0\.0\.1 is not an address of this host"),
        ("255.255.255.255", r"P4REDUCE_HOST=255\.255\.255\.255 is not an address of this host"),
        ("pc1", "P4REDUCE_HOST='pc1' is not an IP address"),
    ],
)
def test_a_variable_that_is_wrong(given: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_HOST", given)
    with pytest.raises(ConfigurationError, match=says):
        address_towards(["x 1", "x 1"], "x 1")
