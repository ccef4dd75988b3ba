# SPDX-License-Identifier: Apache-2.0
"""The wheel for aarch64, run by qemu-user: its switch and a rank, beside a rank of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from distributions import Distributions, install_for
from needed import DEADLINE, marked, needs
from roots import debian_root

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(3600),
    needs(
        programs=("qemu-aarch64-static", "debootstrap"),
        packages=("build", "hatchling", "ziglang", "uv"),
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap takes root"),
]

RANK = """
import platform
import numpy as np
import p4reduce
from p4reduce_native.library import runtime
if platform.machine() == "aarch64":
    assert "/prebuilt/" in runtime()._name
values = np.random.default_rng(11).normal(size=(2, 5000)).astype(np.float32)
with p4reduce.init() as comm:
    got = comm.allreduce(values[comm.rank])
    whole = comm.allreduce(np.arange(999, dtype=np.int32))
    assert np.allclose(got, values.sum(axis=0), atol=1e-4), np.abs(got - values.sum(axis=0)).max()
    assert np.array_equal(whole, 2 * np.arange(999))
print("right on", platform.machine())
"""


def test_switch_and_rank(released: Distributions, tmp_path: Path) -> None:
    root = debian_root("bookworm", "arm64", "python3")
    wheel = f"p4reduce[switch] @ {released.wheel('aarch64').as_uri()}"
    modules = install_for(tmp_path / "modules", "3.11", "aarch64-manylinux_2_28", wheel)
    there = ["qemu-aarch64-static", "-L", root, root / "usr/bin/python3.11"]
    with (
        marked() as environment,
        TemporaryDirectory(prefix="p4r-") as short,
        ExitStack() as ends,
    ):
        folder = Path(short)
        other = {
            **environment,
            "PYTHONPATH": str(modules),
            "CC": "/nonexistent",  # so that nothing is compiled there
            "P4REDUCE_CACHE_DIR": str(folder / "cache"),
        }
        own = {**environment, "P4REDUCE_STATE_DIR": str(folder)}

        def start(*command: object, variables: dict[str, str]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [str(word) for word in command],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            ends.callback(process.wait, 60)
            ends.callback(process.kill)
            return process

        switch, controller = f"unix:{folder}/switch.sock", f"unix:{folder}/controller.sock"
        ports = [f"--port={n}=unix:{folder}/port{n}.sock" for n in (1, 2)]
        log = (folder / "switch.log").open("w")
        ends.callback(log.close)
        engine = subprocess.Popen(
            [
                *map(str, there), "-m", "p4reduce_switch", "--engine=native",
                f"--grpc-addr={switch}", *ports, f"--ready-file={folder}/ready",
            ],
            env=other, stdout=log, stderr=log,
        )  # fmt: skip
        ends.callback(engine.wait, 60)
        ends.callback(engine.kill)
        wait_for(folder / "ready", engine, folder / "switch.log")
        start(
            sys.executable, "-m", "p4reduce_controller", "serve", f"--switch={switch}",
            "--ports=1-2", f"--listen={controller}", "--connect-timeout=200", "--lease=60",
            f"--ready-file={folder}/serves", variables=own,
        )  # fmt: skip
        wait_for(folder / "serves", engine, folder / "switch.log")
        program = folder / "rank.py"
        program.write_text(RANK)
        ranks = []
        for rank, (python, variables) in enumerate((([sys.executable], own), (there, other))):
            place = {
                "P4REDUCE_CONTROLLER": controller,
                "P4REDUCE_INTERFACE": f"unix:{folder}/port{{port}}.sock",
                "P4REDUCE_RANK": str(rank),
                "P4REDUCE_WORLD_SIZE": "2",
            }
            ranks.append(start(*python, program, variables={**variables, **place}))
        said = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
        assert "right on" in said[0], said
        assert said[1].strip().endswith("right on aarch64"), said


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE
    while not path.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
