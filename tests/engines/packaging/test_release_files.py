# SPDX-License-Identifier: Apache-2.0
"""What a release holds: the same bytes each time, no newer machines needed, pages, completions."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from distributions import Distributions, build, run
from needed import ROOT, needs

with_build = needs(packages=("build", "hatchling", "ziglang"))
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800), with_build]

GLIBC = (2, 28)
PACKAGES = (
    "p4reduce",
    "p4reduce_common",
    "p4reduce_native",
    "p4reduce_controller",
    "p4reduce_switch",
    "p4reduce_lab",
)


def digests(released: Distributions) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in released.folder.iterdir()
    }


def test_another_day_and_directory_give_the_same_bytes(
    released: Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "another place"
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    )
    for name in filter(None, listed.decode().split("\0")):
        if not (ROOT / name).is_file():
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
        shutil.copymode(ROOT / name, copy / name)
        os.utime(copy / name, (1, 1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert digests(build(tmp_path / "again", copy)) == digests(released)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_machine_code_is_for_the_machine_and_an_old_c_library(
    released: Distributions, machine: str
) -> None:
    wheel = released.wheel(machine)
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{machine}.whl")
    elf_machine = {"x86_64": 62, "aarch64": 183}[machine]
    with zipfile.ZipFile(wheel) as archive:
        objects = [name for name in archive.namelist() if name.endswith(".so")]
        # x86-64 has a variant for AVX2 and one for AVX-512 beside the plain one.
        assert len(objects) == (6 if machine == "x86_64" else 2)
        for name in objects:
            code = archive.read(name)
            assert int.from_bytes(code[18:20], "little") == elf_machine
            needed = [tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(2\.\d+)", code)]
            assert needed
            assert max(needed) <= GLIBC, name
        for package in PACKAGES:
            assert f"{package}/py.typed" in archive.namelist()
        assert "p4reduce_controller/pipeline/p4reduce.json" in archive.namelist()
        assert not [name for name in archive.namelist() if name.startswith("tests/")]


def test_the_version_is_in_one_place(released: Distributions) -> None:
    [version] = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    for wheel in released.folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
            about = BytesParser().parsebytes(archive.read(name))
        assert about["Version"] == version
        if about["Name"] == "p4reduce-lab":
            assert about.get_all("Requires-Dist") == [f"p4reduce[demo]=={version}"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@needs(packages=("twine",))
def test_twine_takes_them(released: Distributions) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *released.folder.iterdir())


def test_the_sdist_builds_without_a_network(released: Distributions, tmp_path: Path) -> None:
    run("tar", "-xf", released.the("p4reduce-*.tar.gz"), "-C", tmp_path)
    [source] = tmp_path.iterdir()
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", source)
    # A namespace of its own has no interface that is up.
    offline = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--net")
    run(*offline, *command, variables={**os.environ, "PIP_NO_INDEX": "1"})
    [wheel] = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("man/man1/p4reduce-lab.1") for name in archive.namelist())


@needs(programs=("mandoc",))
def test_man_pages_are_well_formed_and_complete(released: Distributions, tmp_path: Path) -> None:
    with zipfile.ZipFile(released.wheel("x86_64")) as archive:
        pages = [name for name in archive.namelist() if "/man/man1/" in name]
        archive.extractall(tmp_path, pages)
    assert {Path(name).name for name in pages} == {
        "p4reduce-lab.1",
        "p4reduce-controller.1",
        "p4reduce-switch.1",
    }
    for name in pages:
        lint = subprocess.run(
            ["mandoc", "-T", "lint", "-W", "warning", tmp_path / name],
            capture_output=True,
            text=True,
        )
        # A page of a reproducible release has no date.
        faults = [line for line in lint.stdout.splitlines() if "missing date" not in line]
        assert not faults
    shown = {
        Path(name).name: run("mandoc", "-T", "utf8", "-O", "width=78", tmp_path / name)
        for name in pages
    }
    plain = {name: re.sub(".\b", "", text) for name, text in shown.items()}
    assert "p4reduce-controller job list" in plain["p4reduce-controller.1"]
    assert "--keep-jobs" in plain["p4reduce-controller.1"]
    assert "--udp-key-file FILE" in plain["p4reduce-switch.1"]
    assert "p4reduce-lab exec -n 4 -- python examples/allreduce.py" in plain["p4reduce-lab.1"]
