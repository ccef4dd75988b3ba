# SPDX-License-Identifier: Apache-2.0
"""A compressor in a package of its own, found by its entry point: the recipe of the docs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from own_package import installed
from p4reduce.compression import compressor_by_name, register
from p4reduce.compression.registry import GROUP
from ranks_here import exchange

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "compressor"


@pytest.fixture
def cyclic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example, installed where this process finds it."""
    site = installed(EXAMPLE, tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("p4reduce_cyclic", None)


def test_it_is_found_by_its_name_and_sums(cyclic: Path) -> None:
    ranks = [compressor_by_name("cyclic:4", 3) for _ in range(3)]
    random = np.random.default_rng(1)
    gradients = [random.standard_normal(256 * 8).astype(np.float32) for _ in range(3)]
    whole = np.sum(gradients, axis=0)
    zeros = [np.zeros_like(gradient) for gradient in gradients]
    total = np.zeros_like(whole)
    for step in range(4):
        sent, part = exchange(ranks, zeros if step else gradients)
        assert [one.blocks for one in sent] == [2, 2, 2]
        total += part
    assert (total == whole).all() or np.allclose(total, whole, atol=1e-6)


def test_it_has_narrow_lanes_and_says_what_is_wrong(cyclic: Path) -> None:
    assert compressor_by_name("cyclic:2/int8", 2).lane_bits == 8
    with pytest.raises(ValueError, match="'cyclic:x': cyclic: needs a number") as raised:
        compressor_by_name("cyclic:x", 2)
    assert "cyclic:PARTS" in str(raised.value)


def test_commands_know_it_in_a_process_of_their_own(tmp_path: Path) -> None:
    site = installed(EXAMPLE, tmp_path)
    program = "from p4reduce.compression import known_compressions as k; print(k())"
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ", cyclic:PARTS, " in done.stdout


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import none_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("", "does not register 'broken'"),
    ],
)
def test_a_broken_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    package = tmp_path / "package"
    shutil.copytree(EXAMPLE, package)
    (package / "p4reduce_cyclic.py").unlink()
    (package / "broken_one.py").write_text(source)
    text = (package / "pyproject.toml").read_text()
    text = text.replace('cyclic = "p4reduce_cyclic"', 'broken = "broken_one"')
    (package / "pyproject.toml").write_text(text)
    monkeypatch.syspath_prepend(str(installed(package, tmp_path / "site")))
    with pytest.raises(ValueError, match=re.escape(f"broken_one, of {GROUP}, {why}")):
        compressor_by_name("broken:1", 2)
    with pytest.raises(ValueError, match="no compressor has that name") as raised:
        compressor_by_name("gzip", 2)
    assert f"broken_one, of {GROUP}, {why}" in str(raised.value), "the others still are known"
    assert compressor_by_name("topk:0.1", 2).world_size == 2, "it is not asked for"
    sys.modules.pop("broken_one", None)


def test_a_name_belongs_to_one() -> None:
    compressor_by_name("none", 2)
    with pytest.raises(ValueError, match=r"compressor 'topk' of .*: p4reduce\.compression\."):
        register("topk")(lambda given: compressor_by_name("none", given.world_size))
    with pytest.raises(ValueError, match="letters, digits and underscores only"):
        register("top:k")
