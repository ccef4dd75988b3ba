# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a job run a switch, by the rule or as the user says."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

import pytest
from p4reduce import ConfigurationError, LaunchError
from p4reduce.arrangement import MOST_SWITCHES, SWITCHES, Host, hosts_with_switches, switch_names
from p4reduce.hosts import addresses_in, this_host
from p4reduce.job_network import begin
from p4reduce.variables import CONTROLLER, INTERFACE
from worker_system import wait_for


def hosts(number: int, ranks: int = 1) -> list[Host]:
    address = "10.0.0.{}" if number > 1 else ""
    return [
        Host(f"pc{n}", tuple(range(n * ranks, (n + 1) * ranks)), address.format(n))
        for n in range(number)
    ]


@pytest.mark.parametrize(
    ("number", "ranks", "wanted", "switches"),
    [
        (1, 4, "", [0]),
        (1, 4, "each", [0]),
        (1, 100, "", [0]),
        (1, 4, "pc0", [0]),
        (2, 1, "", [0, 1]),
        (3, 8, "", [0, 1, 2]),
        (3, 8, "first", [0]),
        (3, 1, "10.0.0.2,10.0.0.1", [1, 2]),
        (3, 1, "pc2", [2]),
        (3, 1, " 10.0.0.1 ", [1]),
        (64, 1, "", list(range(MOST_SWITCHES))),
        (2, 32, "each", [0, 1]),
        (2, 33, "", [0]),  # a tree, on the first
        (5, 100, "first", [0]),
    ],
)
def test_the_rule(number: int, ranks: int, wanted: str, switches: list[int]) -> None:
    assert hosts_with_switches(hosts(number, ranks), wanted) == tuple(switches)


def test_addresses_are_compared_as_addresses() -> None:
    pair = [Host("a", (0,), "fd00::1"), Host("b", (1,), "fd00:0:0::2")]
    assert hosts_with_switches(pair, "fd00::0002") == (1,)


def test_one_host_may_be_named_by_any_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    own = addresses_in(this_host())
    if not own:
        pytest.skip("this host has no address but loopback's")
    for name in (CONTROLLER, INTERFACE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(SWITCHES, own[-1])
    started = begin(lambda text: [text], 0, 1)
    assert started is not None
    started.network.close()


def test_a_network_that_ends_while_ranks_wait_for_each_other_is_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (CONTROLLER, INTERFACE, SWITCHES):
        monkeypatch.delenv(name, raising=False)
    started = begin(lambda text: [text], 0, 1)
    assert started is not None
    network = started.network

    def has_ended() -> bool:
        with contextlib.suppress(LaunchError):
            network.check()
            return False
        return True

    def late(text: str) -> Sequence[str]:
        if not has_ended():
            os.kill(network.pids["network"], signal.SIGKILL)
            wait_for(has_ended, "this rank knows of it")
        return [text]

    with pytest.raises(LaunchError, match="the network has ended: killed by signal 9"):
        begin(late, 0, 1)
    network.close()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["pc", "pc", "pc"], ["pc-1", "", "pc-3"]),
        (["a.b", "-a b", "ä"], ["a-b", "", "host"]),
        (["n-3", "n", "n"], ["n-3", "", "n-3-3"]),
    ],
)
def test_each_switch_has_a_name_of_its_own(names: list[str], expected: list[str]) -> None:
    several = [Host(name, (rank,)) for rank, name in enumerate(names)]
    assert switch_names(several, (0, 2)) == expected


@pytest.mark.parametrize(
    ("number", "ranks", "wanted", "says"),
    [
        (2, 1, "everywhere", "'everywhere' is neither 'each' nor 'first'.* 10.0.0.0, 10.0.0.1"),
        (1, 1, "10.0.0.9", "no address of a host of this job; they are pc0"),
        (2, 1, "10.0.0.9", "'10.0.0.9' is neither .* no address of a host of this job"),
        (2, 1, "10.0.0.1,", "'' is neither"),
        (2, 33, "each", "the job has 66 ranks, and switches side by side take 64 at most"),
        (20, 1, ",".join(f"10.0.0.{n}" for n in range(17)), "the job has 17 hosts, and .* take 16"),
        (3, 30, "pc0,pc1", "the job has 90 ranks"),
    ],
)
def test_what_cannot_be(number: int, ranks: int, wanted: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        hosts_with_switches(hosts(number, ranks), wanted)
