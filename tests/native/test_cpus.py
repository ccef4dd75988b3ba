# SPDX-License-Identifier: Apache-2.0
"""How many CPUs a process may use, in cgroups of both versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from p4reduce_native.cpus import usable_cpus, use_all_cpus

V2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
NO_CPU = "33 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"

OWN = f"p4reduce-test-{os.getpid()}"
GROUPS = [("cpu", OWN), ("cpu,cpuacct", OWN), (OWN,)]
QUOTAS = {"cpu.max": "100000 100000", "cpu.cfs_quota_us": "100000"}  # one CPU


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def world(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A root with /proc and cgroups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 16),
        ({"a/b/cpu.max": "max 100000"}, 16),
        ({"a/b/cpu.max": "400000 100000"}, 4),
        ({"a/b/cpu.max": "350000 100000"}, 3),
        ({"a/b/cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "800000 100000"}, 2),
        ({"cpu.max": "600000 200000"}, 3),
        ({"other/cpu.max": "100000 100000"}, 16),
        ({"a/b/cpu.max": "6400000 100000"}, 16),
        ({"a/b/cpu.max": "nonsense"}, 16),
    ],
)
def test_version_2(tmp_path: Path, files: dict[str, str], cpus: int) -> None:
    assert usable_cpus(world(tmp_path, "0::/a/b\n", V2, files)) == cpus


@pytest.mark.parametrize(
    ("quota", "above", "cpus"),
    [("-1", "-1", 16), ("300000", "-1", 3), ("-1", "250000", 2), ("800000", "100000", 1)],
)
def test_version_1(tmp_path: Path, quota: str, above: str, cpus: int) -> None:
    files = {}
    for group, text in (("a", above), ("a/b", quota)):
        files[f"cpu,cpuacct/{group}/cpu.cfs_quota_us"] = text
        files[f"cpu,cpuacct/{group}/cpu.cfs_period_us"] = "100000"
    cgroup = "4:cpuset:/c\n1:cpu,cpuacct:/a/b\n0::/elsewhere\n"
    assert usable_cpus(world(tmp_path, cgroup, NO_CPU + V1, files)) == cpus


@pytest.mark.parametrize(
    ("cgroup", "top"),
    [
        ("0::/docker/0123/a\n", "/docker/0123"),  # a container that sees the host's names
        ("0::/\n", "/"),  # one with names of its own
        ("0::/../..\n", "/"),  # a process from outside of it
    ],
)
def test_a_container(tmp_path: Path, cgroup: str, top: str) -> None:
    mount = V2.replace(" / /sys", f" {top} /sys")
    assert usable_cpus(world(tmp_path, cgroup, mount, {"cpu.max": "200000 100000"})) == 2


def test_without_cgroups(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == 16


def test_the_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    files = {"a/cpu.max": "400000 100000"}
    assert usable_cpus(world(tmp_path, "0::/a\n", V2, files)) == 2


def can_be_made(group: Path) -> bool:
    try:
        group.mkdir()
    except OSError:
        return False
    return True


@pytest.mark.root
def test_the_kernels_own() -> None:
    """A process in a group with a quota of one CPU."""
    made = next(filter(can_be_made, (Path("/sys/fs/cgroup", *group) for group in GROUPS)), None)
    if made is None:
        pytest.skip("cgroups cannot be made here")
    try:
        limit = next((made / name for name in QUOTAS if (made / name).exists()), None)
        if limit is None:
            pytest.skip("cgroups do not limit CPUs here")
        limit.write_text(QUOTAS[limit.name])
        program = (
            "import os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid()));"
            "from p4reduce_native.cpus import usable_cpus; print(usable_cpus())"
        )
        command = [sys.executable, "-c", program, str(made / "cgroup.procs")]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert said.stdout.strip() == "1"
    finally:
        made.rmdir()


def test_a_bound_process_is_let_go() -> None:
    program = (
        "import os; every = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(every)});"
        "from p4reduce_native.cpus import use_all_cpus; use_all_cpus();"
        "assert os.sched_getaffinity(0) >= every, os.sched_getaffinity(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_the_call_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    use_all_cpus()
