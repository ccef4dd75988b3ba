# SPDX-License-Identifier: Apache-2.0
"""How many CPUs a process may use: those of its affinity, and the quota of its cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOST = 8192  # CPUs of a kernel


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many CPUs this process can keep busy, at least 1.

    A container has a CPU quota rather than fewer CPUs: `cpu.max` in cgroup v2, `cpu.cfs_quota_us`
    in v1, here or in a group above.

    Args:
        root: of the file system that has /proc and the cgroups.
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cpus = os.cpu_count() or 1
    return max(1, int(min([cpus, *_quotas(root)])))


def use_all_cpus() -> None:
    """Let this thread, and the threads and processes that it starts from now on, run on all CPUs
    of its cgroup.

    A rank that is bound to a core passes its affinity on to what it starts.
    """
    with contextlib.suppress(OSError, AttributeError):  # not allowed, or not Linux
        os.sched_setaffinity(0, range(_MOST))  # the kernel leaves out those of other cgroups


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas that hold for this process, in CPUs."""
    for group in _groups(root):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            limit = int((group / "cpu.cfs_quota_us").read_text())
            if limit > 0:
                yield limit / int((group / "cpu.cfs_period_us").read_text())


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's cgroups that limit CPUs, up to where they are
    mounted."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths: dict[str, PurePosixPath] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))  # v2 has no name
    for line in mounts:
        place, _, kind = line.partition(" - ")
        _, _, _, top, where, *_ = place.split()
        system, _, options = kind.split(" ", 2)
        group = paths.get("")
        if system == "cgroup" and "cpu" in options.split(","):
            group = paths.get("cpu")
        elif system != "cgroup2":
            continue
        if group is None:
            continue
        mounted = root / where.lstrip("/")
        # In a container the path may begin outside of what is mounted there.
        below = group.relative_to(top) if group.is_relative_to(top) else PurePosixPath()
        yield mounted / below
        yield from (mounted / one for one in below.parents)
