# SPDX-License-Identifier: Apache-2.0
"""P4REDUCE_LANES=64: jobs in the frames that hardware has, with a program that sums these."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launched import DEADLINE, ENVIRONMENT, LAB, Launched
from p4reduce_lab.switches import bmv2

pytestmark = pytest.mark.usefixtures("nothing_left")

# Every dtype and every width of lanes, sums that do not fit, zeros and the other collectives.
COLLECTIVES = """
import hashlib, os, sys
import numpy as np, p4reduce
comm = p4reduce.init(engine=sys.argv[1] if os.environ["RANK"] == "0" else "native")
sums = hashlib.sha256()
rng = np.random.default_rng(11)
size = 1000
for dtype in (np.int32, np.int16, np.int8, np.float16, np.float32, np.float64):
    integers = np.issubdtype(dtype, np.integer)
    parts = [
        rng.integers(0, 30, size).astype(dtype) if integers else rng.normal(size=size).astype(dtype)
        for _ in range(comm.size)
    ]
    expected = np.sum(np.stack(parts).astype(np.float64), axis=0)
    got = comm.allreduce(parts[comm.rank])
    assert got.dtype == dtype
    tolerance = 0 if integers else 1e-2 if dtype == np.float16 else 1e-5
    assert np.abs(got - expected).max() <= tolerance, (dtype, np.abs(got - expected).max())
floats = [rng.normal(size=size).astype(np.float32) for _ in range(comm.size)]
expected = np.sum(floats, axis=0)
# Each rank rounds by less than one step, which for int4 is 4, the power of two above its largest.
for precision, tolerance in (("int16", 2e-3), ("int8", 0.5), ("int4", 16.0)):
    got = comm.allreduce(floats[comm.rank], precision=precision)
    assert np.abs(got - expected).max() <= tolerance, (precision, np.abs(got - expected).max())
    assert np.abs(got).max() > 0
    sums.update(got.tobytes())
try:
    comm.allreduce(np.full(size, 2**30, np.int32))
except p4reduce.LaneOverflowError as error:
    print("overflow:", error, flush=True)
assert not comm.allreduce(np.zeros(size, np.float32)).any()
sparse = np.zeros(64 * 100, np.float32)
sparse[64 * 5 + comm.rank] = 1
before = comm.stats.blocks_sent
assert comm.allreduce(sparse).sum() == comm.size
print("blocks:", comm.stats.blocks_sent - before, flush=True)
assert (comm.broadcast(np.arange(300) + comm.rank, root=1) == np.arange(300) + 1).all()
gathered = comm.allgather(np.full(100, comm.rank, np.int32))
assert gathered.tolist() == np.repeat(np.arange(comm.size), 100).tolist()
mine = comm.reduce_scatter(np.arange(400, dtype=np.int32))
assert mine.tolist() == (comm.size * (np.arange(100) + 100 * comm.rank)).tolist()
print("done", sums.hexdigest(), flush=True)
comm.close()
"""


# What C says of an int8 block: the first argument is its first number, and the second one how many
# ranks the job has.
CHECKED = """
import ctypes, sys, types
import numpy as np
from p4reduce_native.c_header import CHeader
from p4reduce_native.library import engine
from p4reduce.tensors.native_stream import codec_structure
from p4reduce.wire.format import Format
number, ranks = map(int, sys.argv[1:])
numbers = np.zeros(256, np.int8)
numbers[0] = number
call = types.SimpleNamespace(
    dtype=numbers.dtype, format=Format.INT8, is_mean=False, noise=None
)
codec, payload = codec_structure(call, ranks), ctypes.create_string_buffer(256)
print(CHeader("worker/worker.h").functions(engine()).p4r_lanes_encode(
    ctypes.byref(codec), numbers.ctypes.data, 0, 0, payload, None
))
"""


@pytest.mark.parametrize(
    ("number", "ranks", "flags"),
    [(31, 4, 0), (32, 4, 2), (-31, 4, 0), (-32, 4, 2), (0, 200, 0), (1, 200, 2), (-1, 200, 2)],
)
def test_a_rank_says_overflow_of_what_the_ranks_cannot_add_up(
    number: int, ranks: int, flags: int
) -> None:
    command = [sys.executable, "-c", CHECKED, str(number), str(ranks)]
    done = subprocess.run(
        command, env=environment(64), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == flags


def environment(lanes: int) -> dict[str, str]:
    return {**ENVIRONMENT, "P4REDUCE_LANES": str(lanes)}


# Rank 0 may be the specification: what it sends and makes of sums is the same.
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ([], "native"),
        (["--tree", "2x2"], "native"),
        ([], "reference"),
    ],
    ids=["one switch", "tree", "specification"],
)
def test_every_collective_and_every_width(
    tmp_path: Path, options: list[str], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "P4REDUCE_LANES", "64")
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    ranks = ["-n", "4"]
    run = Launched(tmp_path, "exec", *ranks, *options, "--", sys.executable, str(script), engine)
    assert run.wait() == 0, run.output
    sums = re.findall(r"\] done (\w+)", run.output)
    assert (len(sums), len(set(sums))) == (4, 1)
    # 1,000 numbers are 16 blocks of 64, and the first one says so.
    assert "elements 0 to 63" in run.output
    assert set(re.findall(r"blocks: (\d+)", run.output)) == {"1"}


@pytest.mark.long
@pytest.mark.bmv2
@pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))
def test_a_training_on_bmv2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "P4REDUCE_LANES", "64")
    arguments = ["--ranks", "2", "--switch", "bmv2", "--steps", "40", "--output", "out"]
    run = Launched(tmp_path, "run", *arguments)
    assert run.wait() == 0, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["problems"] == []


@pytest.mark.long
def test_a_rank_with_other_frames_is_refused(tmp_path: Path) -> None:
    up = Launched(tmp_path, "up", "--ports", "2")
    up.wait_for("Ctrl-C ends it")
    exported = dict(re.findall(r"export (\w+)='?([^'\s]+)'?", up.output))
    program = [sys.executable, "-c", "import p4reduce; p4reduce.init()"]
    done = subprocess.run(
        [*LAB, "exec", "-n", "2", "--", *program],
        env={**environment(64), **exported},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "has 64 lanes in a frame, and the switch's program sums 256: set P4REDUCE_LANES=256 for "
        "the rank, or P4REDUCE_LANES=64 for the controller" in done.stdout + done.stderr
    )
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 130


@pytest.mark.parametrize("given", ["65", "256.0", "many", "-64"])
def test_a_number_that_no_frame_has(given: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import p4reduce; p4reduce.init()"],
        env={**os.environ, "P4REDUCE_LANES": given},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    said = f"P4REDUCE_LANES={given}: a frame has 64 lanes or 256"
    assert done.returncode == 1
    assert f"p4reduce.errors.ConfigurationError: {said}" in done.stderr
    for command, code in (("p4reduce_lab", 2), ("p4reduce_controller", 1)):
        done = subprocess.run(
            [sys.executable, "-m", command, "--help"],
            env={**os.environ, "P4REDUCE_LANES": given},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == code
        assert done.stderr == f"{command.replace('_', '-')}: {said}\n"
