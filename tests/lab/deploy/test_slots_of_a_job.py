# SPDX-License-Identifier: Apache-2.0
"""How many slots a job has for which a network is started."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from p4reduce.wire.format import PAYLOAD_FRAME_BYTES
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.deploy.share import HostShare, NetworkShare, slots_of_a_job
from p4reduce_lab.deploy.whole import deployed

BUFFER = 256 << 10  # bytes, that a small Ethernet switch has for all links together


def test_two_hosts_use_as_many_as_any_job() -> None:
    assert slots_of_a_job(1) == "128"


def test_ranks_that_are_all_on_the_switch_s_host() -> None:
    assert slots_of_a_job(0) == "auto"


@pytest.mark.parametrize("away", [2, 3, 5, 7])
def test_what_all_send_at_once_fits_into_an_ethernet_switch(away: int) -> None:
    assert away * int(slots_of_a_job(away)) * PAYLOAD_FRAME_BYTES <= BUFFER


@pytest.mark.parametrize("away", [15, 63])
def test_the_link_is_kept_busy(away: int) -> None:
    assert int(slots_of_a_job(away)) >= 32


@pytest.mark.parametrize(
    ("ranks", "switches", "slots"),
    [
        ([6, 1, 1], ["a", "b", "c"], 32),  # 7 ranks are away from b, and from c
        ([6, 1, 1], ["a", "", ""], 96),
        ([8, 1], ["", "b"], 32),
        ([1, 1], ["a", "b"], 128),
        ([4], ["a"], "auto"),
    ],
)
def test_the_switch_with_most_ranks_away_decides(
    ranks: list[int], switches: list[str], slots: int, tmp_path: Path
) -> None:
    ends = list(accumulate(ranks))
    addresses = [f"127.0.0.{host + 1}" for host in range(len(ranks))]
    hosts = []
    for host, end in enumerate(ends):
        here = range(end - ranks[host], end)
        directory = tmp_path / f"{host}"
        directory.mkdir()
        share = NetworkShare(ends[-1], here, host, addresses, switches)
        hosts.append(HostShare(share, directory))
    serve = hosts[0].parts([host.offer() for host in hosts]).serve
    assert serve[serve.index("--default-slots") + 1] == str(slots)


@pytest.mark.parametrize(
    ("options", "slots"),
    [({"unix": True}, "auto"), ({"unix": True, "slots": 512}, "512"), ({}, "128")],
)
def test_a_network_that_is_all_on_this_host(
    options: dict[str, Any], slots: str, tmp_path: Path
) -> None:
    serve = deployed(DeploySettings(4, **options), tmp_path).serve
    assert serve[serve.index("--default-slots") + 1] == slots
