# SPDX-License-Identifier: Apache-2.0
"""`bench.pytorch.gpu`, which has to run on the day with a GPU, without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from p4reduce_lab.networks import links

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

pytestmark = [pytest.mark.fake_device, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SMALL = ("--parameters", "3e5", "--bucket", "200000", "--steps", "1")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.pytorch.gpu", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=570, check=False,
    )  # fmt: skip


def complete(text: str, figures: dict[str, Any], links: list[str], copies: bool) -> None:
    """Assert that all was measured, and that people see it."""
    assert figures["bits"]["differs"] == []
    same = figures["bits"]["same"]
    assert {"all_reduce of float32", "send and receive of uint8", "lanes of int4"} <= set(same)
    assert f"bits: {len(same)} of {len(same)} cases have the CPU's bits" in text
    for link in links:
        ours, gloos = figures[f"p4reduce, {link}"], figures[f"gloo, {link}"]
        for one in (ours["float32"], ours["int8_hook"], gloos["float32"]):
            assert one["seconds"] > 0
        for one in (ours["bucket"], gloos["bucket"]):
            assert one.keys() == {"held", "sum", "hidden"}
        if copies:
            assert ours["float32"]["copied"] == pytest.approx(1, rel=0.01)
            assert ours["int8_hook"]["copied"] < 0.27
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 2 * len(links)
    assert "not measured" not in text or not copies


def test_all_of_it_by_the_fake_device(tmp_path: Path) -> None:
    kept = tmp_path / "gpu.json"
    done = bench("--device", "fake", "--rates", "--json", str(kept), *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    complete(done.stdout, json.loads(kept.read_text()), ["no limit"], copies=True)


@pytest.mark.root
@pytest.mark.skipif(links.unavailable() is not None, reason=links.unavailable() or "")
def test_over_links_of_two_rates(tmp_path: Path) -> None:
    kept = tmp_path / "gpu.json"
    done = bench("--device", "cpu", "--json", str(kept), *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    rates = ["1Gbit", "10Gbit"]
    complete(done.stdout, json.loads(kept.read_text()), rates, copies=False)


def test_a_part_that_fails_is_named_and_what_is_known_is_shown(tmp_path: Path) -> None:
    """The ranks of the times cannot make such a tensor; bits are compared all the same."""
    kept = tmp_path / "gpu.json"
    done = bench("--device", "fake", "--rates", "--json", str(kept), *SMALL[:2], "--bucket", "-4")
    assert done.returncode == 1, done.stderr
    figures = json.loads(kept.read_text())
    assert "failed" not in figures["bits"]
    for name in ("p4reduce, no limit", "gloo, no limit"):
        assert "negative" in figures[name]["failed"]
        assert f"{name} failed: " in done.stdout
    assert "cases have the CPU's bits" in done.stdout


def test_no_time_is_left(tmp_path: Path) -> None:
    done = bench("--device", "fake", "--rates", "--minutes", "0")
    assert done.returncode == 1, done.stderr
    assert "bits: not run, the time is up" in done.stdout
    assert "no figures" in done.stdout


@pytest.mark.skipif(torch.accelerator.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = bench()
    assert done.returncode == 77
    assert "finds no GPU; it was built for " in done.stderr


def test_bytes_of_a_profile() -> None:
    """Of copies between host and device alone."""
    from bench.pytorch.gpu_rank import copied_bytes

    def copy(name: str, size: int) -> dict[str, Any]:
        return {"cat": "gpu_memcpy", "name": name, "args": {"bytes": size}}

    events = [
        copy("Memcpy DtoH (Device -> Pinned)", 100),
        copy("Memcpy HtoD (Pinned -> Device)", 30),
        copy("Memcpy DtoD (Device -> Device)", 7),
        {"cat": "kernel", "name": "HtoD", "args": {}},
        {"name": "process_name", "args": {"name": "python"}},
    ]
    assert copied_bytes({"traceEvents": events}) == 130
