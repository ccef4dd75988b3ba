# SPDX-License-Identifier: Apache-2.0
"""What is built on process groups comes to the same as over Gloo, and the demo says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import without_linux
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well, clean_environment

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

USES = {
    "ddp": {"all_reduce", "broadcast"},
    "zero": {"all_reduce", "broadcast"},
    "fsdp": {"all_gather_into_tensor", "reduce_scatter_tensor"},
    "collectives": {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast"},
    "saved": {"all_gather_into_tensor"},
    "divided": {"reduce_scatter_tensor"},
    "mixed": {"all_gather_into_tensor", "reduce_scatter_tensor"},
    "uneven": {"all_reduce"},
    "hsdp": set(),  # its groups are parts of the world
}
EXAMPLE_ENDS = {
    "ddp": ", same weights: True",
    "fsdp2": ", checkpoint in .*",
    "hook": ", [0-9,]+ bytes sent",
    "embedding": "; [0-9,]+ bytes, [0-9,]+ if dense",
}


@pytest.fixture(scope="module")
def used(
    system: TorchSystem, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What rank 0 of four printed of each use."""
    ended = Ranks(system, 4, ["uses.py"], tmp_path_factory.mktemp("uses")).wait()
    all_well(ended)
    return {record["use"]: record for record in ended[0].records}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("use", USES)
def test_it_comes_to_the_same_as_over_gloo(use: str, used: dict[str, dict[str, Any]]) -> None:
    assert used[use]["apart"] < 1e-4
    assert set(used[use]["switch"]) >= USES[use], used[use]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EXAMPLE_ENDS)
def test_an_example_trains(name: str, system: TorchSystem, tmp_path: Path) -> None:
    program = [str(EXAMPLES / f"pytorch_{name}.py")]
    ended = Ranks(system, 3, program, tmp_path / "ranks", {"P4REDUCE_JOB": name}).wait()
    all_well(ended)
    first = float(ended[0].lines[0].partition("loss ")[2])
    for rank, one in enumerate(ended):
        found = re.fullmatch(
            f"rank {rank}: final loss ([0-9.]+)" + EXAMPLE_ENDS[name], one.lines[-1]
        )
        assert found, one.lines
        assert float(found[1]) < 0.9 * first


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "switches",
    [["-n", "2"], ["--tree", "2x1"], ["-n", "2", "--switches", "2"]],
    ids=["one switch", "tree", "two"],
)
def test_the_demo_compares_switch_and_gloo(tmp_path: Path, switches: list[str]) -> None:
    for name in ("summary.json", "training.png"):  # of FRAMEWORK=numpy
        (tmp_path / name).write_text("of an earlier run")
    command = [sys.executable, "-m", "p4reduce_lab", "run", "--framework", "torch", *switches]
    command += ["--steps", "30", "--switch", "embedded", "--net", "local", "-o", str(tmp_path)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any((tmp_path / name).exists() for name in ("summary.json", "training.png"))
    assert done.stdout.count("step 30 of 30") == 2, done.stdout
    switch, gloo = json.loads((tmp_path / "torch-summary.json").read_text())
    assert (switch["backend"], gloo["backend"]) == ("p4reduce", "gloo")
    assert switch["same_weights"]
    assert switch["accuracy"] == pytest.approx(gloo["accuracy"], abs=0.005)
    # Each step sends all parameters once, in frames of 1,102 bytes for 1,024; blocks of zeros not.
    assert 0.7 < switch["bytes_a_rank"] / (30 * 4 * switch["parameters"]) < 1.4
    assert gloo["bytes_a_rank"] > 0
    assert 0 <= switch["waiting_share"] < 1


def test_the_profiler_shows_our_calls_by_name(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 2, ["profiled.py"], tmp_path).wait()
    all_well(ended)
    (record,) = ended[0].records
    assert set(record["names"]) >= {
        "p4reduce::all_reduce",
        "p4reduce::wait all_reduce",
        "p4reduce::broadcast",
        "p4reduce::int8_hook",
    }


def test_nothing_needs_linux_at_import() -> None:
    # torch would load the backend at its own import, before what Linux alone has is gone.
    variables = {**clean_environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, without_linux.__file__, "torch"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(without_linux.names(torch=True))} modules\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("words", "warns"),
    [(["gloo"], True), (["cpu:gloo"], True), (["p4reduce"], False), (["gloo", "no switch"], False)],
    ids=str,
)
def test_a_default_group_of_gloo_is_warned_of(
    system: TorchSystem, tmp_path: Path, words: list[str], warns: bool
) -> None:
    """By rank 0, if the job was started for the switch."""
    ended = Ranks(system, 2, ["gloo_default.py", *words], tmp_path / "ranks").wait()
    all_well(ended)
    for rank, one in enumerate(ended):
        texts = one.records[0]["texts"]
        assert len(texts) == (warns and rank == 0), texts
        assert all("is set, and the default process group is Gloo's" in text for text in texts)
