# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-lab compare`: refusals, and a small comparison on a real network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from p4reduce_lab.cli import commands
from p4reduce_lab.compare import starting
from p4reduce_lab.compare.run import ComparisonReport
from p4reduce_lab.errors import ArgumentsError, LabError, UnavailableError
from p4reduce_lab.networks import links
from p4reduce_lab.networks.routed import RoutedNetwork
from p4reduce_lab.networks.shaped import ShapedNetwork

FLOAT32_OVER_UDP = 28 / 32  # bits of a lane
REASON = links.unavailable()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))
needs_ping = pytest.mark.skipif(
    shutil.which("ping") is None, reason="needs ping: apt-get install iputils-ping"
)
CONTENDERS = ",".join(
    name for name in ("p4reduce", "gloo", "mpi") if starting.missing(name) is None
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1,4"], "1 is not in the range 2<=x<=64"),
        (["--ranks", "four"], "'four' is not a valid integer range"),
        (["--rates", "99Gbit"], "a rate of 99Gbit; it must be 100kbit to 10Gbit, or none"),
        (["--sizes", "1000"], "a size of 1000 bytes; it must be a multiple of 1024"),
        (["--sizes", "4G"], "write 4K, 2M or 2097152"),
        (["--densities", "0"], "0.0 is not in the range 0<x<=1"),
        (["--precisions", "int2"], "'int2' is not one of 'int32', 'int16', 'int8'"),
        (["--contenders", "nccl"], "'nccl' is not one of 'p4reduce', 'gloo', 'mpi'"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(commands, ["compare", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UnavailableError, match=r"gloo requires PyTorch: pip install 'p4reduce\[torch"
    ):
        starting.check_possible(["p4reduce", "gloo"], linked=False)
    with pytest.raises(UnavailableError, match="mpi requires mpi4py and Open MPI: apt-get install"):
        starting.check_possible(["mpi"], linked=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="network namespaces need root"):
        starting.check_possible(["p4reduce"], linked=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="not installed: ethtool, iproute2, util-linux"):
        starting.check_possible(["p4reduce"], linked=True)


def interfaces() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


@pytest.mark.root
@needs_namespaces
class TestNetwork:
    @needs_ping
    def test_both_links_of_each_rank_are_alike(self) -> None:
        with ShapedNetwork(2, 10) as network:
            network.set_rate(25)
            for interface in ("eth0", "eth1"):
                shown = subprocess.run(
                    [*network.prefix(1), "sh", "-c",
                     f"tc qdisc show dev {interface}; ethtool -k {interface}; ip addr"],
                    capture_output=True, text=True, check=True,
                ).stdout  # fmt: skip
                assert "tbf" in shown
                assert "rate 25Mbit" in shown
                for feature in ("tcp-segmentation-offload", "scatter-gather", "tx-checksumming"):
                    assert f"{feature}: off" in shown
                assert f"{network.address(1)}" in shown
                assert f"{network.tcp_address(1)}" in shown
            near = subprocess.run(
                ["tc", "qdisc", "show", "dev", network.ports[2]],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert "rate 25Mbit" in near
            ping = [*network.prefix(0), "ping", "-c", "1", "-W", "5", "10.1.0.2"]
            assert subprocess.run(ping, capture_output=True, check=False).returncode == 0
            name = network.ports[1]
            assert name in interfaces()
        assert name not in interfaces()

    @needs_ping
    def test_ranks_reach_the_switch_and_each_other_by_one_link(self) -> None:
        with RoutedNetwork(2, 10) as network:
            network.set_rate(1000)
            for prefix in (network.prefix(1), network.switch_prefix):
                shown = subprocess.run(
                    [*prefix, "tc", "qdisc", "show"], capture_output=True, text=True, check=True
                ).stdout
                assert "rate 1Gbit" in shown
            assert "tx-udp-segmentation: on" in subprocess.run(
                [*network.prefix(1), "ethtool", "-k", "eth0"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            for address in (str(network.tcp_address(1).ip), "10.2.0.1"):
                ping = [*network.prefix(0), "ping", "-c", "1", "-W", "5", address]
                assert subprocess.run(ping, capture_output=True, check=False).returncode == 0
            network.set_rate(None)
            shown = subprocess.run(
                [*network.prefix(0), "tc", "qdisc", "show"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert "tbf" not in shown

    def test_what_is_not_possible_is_refused(self) -> None:
        with pytest.raises(LabError, match="65 hosts"):
            ShapedNetwork(65, 10)
        with pytest.raises(LabError, match="a rate of 0bit"):
            ShapedNetwork(2, 0)
        network = ShapedNetwork(1, 10, "nonsense")
        with pytest.raises(LabError, match="no TCP congestion control 'nonsense'; it has "):
            network.start()
        assert "p4c" not in "".join(network.ports.values())


@pytest.mark.long
@pytest.mark.root
@needs_namespaces
def test_all_contenders_over_links(tmp_path: Path) -> None:
    """Those that are installed; no tensor takes less than its bytes take."""
    for row in compared(tmp_path, CONTENDERS, "50Mbit"):
        assert row["seconds"] > 0.8 * row["bound_seconds"]  # but for what a bucket holds
        if row["name"] in ("p4reduce", "gloo", "mpi"):
            assert row["megabytes_up"] * 1e6 > row["bytes"]


@pytest.mark.long
@pytest.mark.root
@needs_namespaces
@pytest.mark.parametrize("rate", ["50Mbit", "none"])
def test_p4reduce_over_udp(tmp_path: Path, rate: str) -> None:
    """By the rank's only link, as what it moved shows."""
    for row in compared(tmp_path, "p4reduce", rate, "--links", "udp"):
        assert row["links"] == "udp"
        assert row["seconds"] > 0.8 * row["bound_seconds"]
        if row["name"] == "p4reduce":
            assert row["megabytes_up"] * 1e6 > FLOAT32_OVER_UDP * row["bytes"]


@pytest.mark.long
@pytest.mark.root
@needs_namespaces
def test_all_contenders_over_udp(tmp_path: Path) -> None:
    for row in compared(tmp_path, CONTENDERS, "50Mbit", "--links", "udp"):
        if row["name"] in ("p4reduce", "gloo", "mpi"):
            assert row["megabytes_up"] * 1e6 > FLOAT32_OVER_UDP * row["bytes"]


def test_bmv2_has_no_udp_ports() -> None:
    result = CliRunner().invoke(commands, ["compare", "--links", "udp", "--switch", "bmv2"])
    assert isinstance(result.exception, ArgumentsError)
    assert "BMv2 has no UDP ports" in str(result.exception)


@pytest.mark.long
def test_all_contenders_without_links(tmp_path: Path) -> None:
    compared(tmp_path, CONTENDERS, "none")


def test_p4reduce_without_links(tmp_path: Path) -> None:
    """Needs neither root nor torch."""
    compared(tmp_path, "p4reduce", "none")


def compared(directory: Path, contenders: str, rate: str, *more: str) -> list[dict[str, Any]]:
    """Run a small comparison, whose sums the ranks check, and return its rows."""
    result = CliRunner().invoke(
        commands,
        ["compare", "--contenders", contenders, "--ranks", "2", "--rates", rate, "--sizes", "64K",
         "--precisions", "int32,int8", "--densities", "1,0.1", "--turns", "2",
         "-o", str(directory / "out"), *more],
        catch_exceptions=False,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert ComparisonReport.read(directory / "out" / "compare.json").rows
    rows: list[dict[str, Any]] = json.loads((directory / "out" / "compare.json").read_text())[
        "results"
    ]
    names = {row["name"] for row in rows}
    assert {"p4reduce", "p4reduce int8", "p4reduce 0.1 independent"} <= names
    assert names >= set(contenders.split(","))
    for row in rows:
        assert 0 < row["fastest_seconds"] <= row["seconds"] <= row["slowest_seconds"]
    return rows
