# SPDX-License-Identifier: Apache-2.0
"""Hosts whose clocks are wrong, or are set while a network runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from p4reduce_lab.deploy.certificates import make_certificates

DAY = 86400
SOURCE = Path(__file__).with_name("wall_clock.c")

# Two ranks in threads, beside a network of this process; the date goes back and forth by a day.
PROGRAM = """
import mmap, struct
import os, sys, threading, time
import numpy as np
import p4reduce
from p4reduce import launch

where = open(os.environ["WALL_CLOCK"], "r+b")
moved = mmap.mmap(where.fileno(), 8)
real = time.time() - time.monotonic()
with launch.start(2, unix=True, lease=2.0) as network:
    os.environ.update(network.variables)
    wrong = []
    def rank_of(rank):
        with p4reduce.init(rank, 2, job="clock", timeout=60) as comm:
            for step in range(60):
                sum = comm.allreduce(np.full(5000, rank + 1, np.float32))
                if not (sum == 3).all():
                    wrong.append((rank, step))
                time.sleep(0.1)
    ranks = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(2)]
    for one in ranks:
        one.start()
    seen = set()
    while any(one.is_alive() for one in ranks):
        for days in (1, -1, 0):
            moved[:] = struct.pack("q", days * 86400)
            seen.add(round((time.time() - time.monotonic() - real) / 86400))
            time.sleep(0.3)
    assert seen == {-1, 0, 1}, seen  # the library has moved the date
    assert not wrong, wrong
    assert not network.news, network.news
print("right")
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="not installed: cc")
def test_a_date_that_jumps_is_no_loss(tmp_path: Path) -> None:
    """Neither a lease of two seconds nor a deadline runs out by a day forth or back."""
    library, moved = tmp_path / "wall_clock.so", tmp_path / "moved"
    built = subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    moved.write_bytes(bytes(8))
    environment = {**os.environ, "LD_PRELOAD": str(library), "WALL_CLOCK": str(moved)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True,
        timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "right" in done.stdout
    assert "lost" not in done.stderr


def test_certificates_are_valid_where_the_clock_is_behind(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["192.0.2.1"])
    certificate, _, ca = made.controller
    for earlier, right in ((0, True), (DAY - 600, True), (2 * DAY, False)):
        at = str(int(time.time()) - earlier)
        command = ["openssl", "verify", "-x509_strict", "-attime", at, "-CAfile", str(ca)]
        done = subprocess.run(
            [*command, str(certificate)], capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode == 0) == right, (earlier, done.stdout, done.stderr)
