# SPDX-License-Identifier: Apache-2.0
"""Whole runs through real processes: what they give."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from launched import Launched
from p4reduce_lab.networks import mininet_net
from p4reduce_lab.switches import bmv2


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_short_run_gives_what_numpy_gives(tmp_path: Path, workers: int) -> None:
    _check_run(tmp_path, "embedded", workers)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_compressed_run_tells_what_it_saved_beside_the_uncompressed_one(tmp_path: Path) -> None:
    arguments = ["--ranks", "2", "--steps", "40", "--output", "out"]
    run = Launched(tmp_path, "run", *arguments, "--compression", "topk:0.2")
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    compression = summary["compression"]
    assert compression["name"] == "topk:0.2"
    assert compression["level_median"] == 8
    assert compression["total_blocks"] == 38
    # 8 blocks up and at most 16 down, and frames without lanes, instead of 38 and 38.
    assert 0.1 < compression["bytes"] / compression["uncompressed_bytes"] < 0.55
    assert abs(compression["uncompressed_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert summary["test_accuracy"] > 0.7
    assert (compression["learning_rate"], compression["momentum"]) == (pytest.approx(1.0), 0)
    assert summary["problems"] == []
    assert summary["weights_sha256"] != compression["uncompressed_weights_sha256"]
    assert summary["compared_elements"] == 2 * 40 * (summary["parameters"] + 1)
    assert re.search(r"bytes saved +\d+\.\d%: \d+\.\d MB a worker instead of", run.output)


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
def test_a_short_run_on_bmv2_gives_what_numpy_gives(tmp_path: Path) -> None:
    _check_run(tmp_path, "bmv2", 2)


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.mininet
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
@pytest.mark.skipif(mininet_net.unavailable() is not None, reason=str(mininet_net.unavailable()))
def test_both_switches_in_mininet_and_out_of_it_train_the_same_weights(tmp_path: Path) -> None:
    weights = {
        (switch, network): _check_run(tmp_path, switch, 2, network)["weights_sha256"]
        for switch, network in (
            ("bmv2", "mininet"),
            ("embedded", "mininet"),
            ("embedded", "local"),
            ("embedded", "udp"),
        )
    }
    assert len(set(weights.values())) == 1, weights


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_a_short_run_on_two_switches_gives_what_numpy_gives(tmp_path: Path) -> None:
    summary = _check_run(tmp_path, "embedded", 2, switches=2)
    assert (summary["switches"], summary["topology"]) == (2, "side-by-side")
    shares = summary["contributions_by_switch"]
    assert sum(shares) == summary["contributions"]
    assert all(share > summary["contributions"] / 4 for share in shares)


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.mininet
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
@pytest.mark.skipif(mininet_net.unavailable() is not None, reason=str(mininet_net.unavailable()))
def test_any_number_of_switches_trains_the_same_weights(tmp_path: Path) -> None:
    weights = {
        (switch, network, switches): _check_run(tmp_path, switch, 2, network, switches)[
            "weights_sha256"
        ]
        for switch, network, switches in (
            ("embedded", "local", 1),
            ("embedded", "local", 2),
            ("embedded", "local", 3),
            ("embedded", "udp", 2),
            ("embedded", "mininet", 2),
            ("bmv2", "mininet", 2),
        )
    }
    assert len(set(weights.values())) == 1, weights


def _check_run(
    tmp_path: Path, switch: str, workers: int, network: str = "local", switches: int = 1
) -> dict[str, Any]:
    arguments = ["--ranks", str(workers), "--steps", "15", "--output", "out", "--pcap"]
    arguments += ["--switches", str(switches)]
    run = Launched(tmp_path, "run", *arguments, "--switch", switch, "--net", network)
    assert run.wait() == 0, run.output
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["switch"] == switch
    assert summary["network"] == network
    assert summary["switches"] == switches
    assert len(list((tmp_path / "out").glob("*.pcap"))) >= workers * switches
    assert summary["workers"] == workers
    assert summary["steps"] == 15
    assert abs(summary["test_accuracy"] - summary["reference_accuracy"]) <= 0.005
    assert summary["test_accuracy"] > 0.7
    assert summary["identical_on_all_ranks"] is True
    assert summary["max_relative_error"] < 1e-6
    assert summary["error_of_bound"] <= 1
    assert summary["compared_elements"] == 15 * (summary["parameters"] + 1)
    assert summary["results"] >= 15 * (summary["parameters"] // 256)
    assert summary["contributions"] == workers * summary["results"]
    assert 0 < summary["training_seconds"] < summary["seconds"]
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert "15/15" in run.output
    assert "bit-identical" in run.output
    assert "\x1b" not in run.output, "colours where there is no terminal"
    return summary
