# SPDX-License-Identifier: Apache-2.0
"""The patches of docs/tutorials apply to the sources as they are, and do what their pages say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_controller.fabric.layout import own_addresses
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_lab import LocalNetwork
from p4reduce_lab.lesson.traced import TracedSwitch

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
PATCHES = sorted(TUTORIALS.glob("*.patch"))
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
RANK = wire.Endpoint("02:00:00:00:01:00", "10.77.0.1", 49152)

SCAN = """
import numpy as np, p4reduce
with p4reduce.init() as comm:
    print(comm.rank, comm.scan(np.array([1, 10], np.int32)))
"""


FIELD = """
import numpy as np, p4reduce
from p4reduce.environment import placement
engine = "reference" if placement(None, None).rank == 0 else "native"
with p4reduce.init(engine=engine, slots=2) as comm:
    print(comm.rank, comm.allreduce(np.full(1000, comm.rank + 1, np.float32))[-1])
"""

CAPTURED = """
import json, sys
from p4reduce.wire.dissect import Aggregation
from scapy.utils import rdpcap
for path in sys.argv[1:]:
    for header in (packet[Aggregation] for packet in rdpcap(path) if Aggregation in packet):
        print(json.dumps([int(header.kind), header.slot, header.round, header.sent]))
"""


def copied(folders: Sequence[str], directory: Path) -> None:
    for folder in folders:
        shutil.copytree(
            ROOT / folder,
            directory / folder,
            ignore=shutil.ignore_patterns("__pycache__", "*.pcap"),
        )


def apply(name: str, directory: Path) -> None:
    """Apply a patch to a copy of the repository, or of the part that it changes."""
    done = subprocess.run(
        ["git", "apply", "--verbose", str(TUTORIALS / name)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "Skipped" not in done.stderr


def patched(name: str, folder: str, directory: Path) -> Path:
    """A copy of a folder of the repository with a patch applied."""
    copied([folder], directory)
    apply(name, directory)
    return directory / folder


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.name)
def test_a_page_shows_its_patch(patch: Path) -> None:
    pages = [page.read_text() for page in TUTORIALS.glob("*.md") if patch.name in page.read_text()]
    assert any(f"```diff\n{patch.read_text()}```" in text for text in pages)


@pytest.mark.long
@pytest.mark.p4c
def test_a_counter_of_what_ranks_repeat(tmp_path: Path) -> None:
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("needs p4c-bm2-ss")
    sources = patched("repeats.patch", "p4src", tmp_path)
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from compile_p4 import compile_program  # a script, so not on the path
    finally:
        sys.path.pop(0)
    compile_program(tmp_path / "compiled", sources, ["p4reduce"])
    program = (tmp_path / "compiled" / "p4reduce.json").read_bytes()
    switch = TracedSwitch(program, 255, own_addresses(parse_ip(SWITCH.ip), parse_mac(SWITCH.mac)))
    for flags in (0, Flag.RETRANSMISSION):
        switch.process(3, wire.template(RANK, SWITCH, Aggregation(job=7, flags=int(flags))))
    assert switch.pipeline.counters["repeated"].packets[3] == 1


@pytest.mark.long
@pytest.mark.p4reduce(ranks=4)
def test_a_prefix_sum(tmp_path: Path, p4reduce_network: LocalNetwork) -> None:
    worker = patched("scan.patch", "worker", tmp_path)
    path = os.pathsep.join([str(worker), *sys.path])
    command = [sys.executable, "-m", "p4reduce_lab", "exec", "-n", "4", "--", sys.executable]
    done = subprocess.run(
        [*command, "-c", SCAN],
        env={**os.environ, **p4reduce_network.variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    wanted = [f"[{rank}] {rank} [{1 + rank:2} {10 * (1 + rank)}]" for rank in range(4)]
    # On a busy machine a rank may also say that it waits.
    printed = [line for line in done.stdout.splitlines() if re.match(r"\[\d\] \d ", line)]
    assert sorted(printed) == wanted, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1300)
@pytest.mark.p4c
def test_a_field_of_the_header(tmp_path: Path) -> None:
    """A patched copy: its own header, program and machine code, and one all-reduce over them."""
    if shutil.which("p4c-bm2-ss") is None:
        pytest.skip("needs p4c-bm2-ss")
    packages = ("worker", "native", "controller", "switch", "lab", "common")
    copied([*packages, "p4src", "tools", "wireshark"], tmp_path)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "protocol.md", tmp_path / "docs")
    apply("field.patch", tmp_path)
    path = os.pathsep.join([*(str(tmp_path / package) for package in packages), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "SWITCH": "embedded", "NET": "local"}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python("tools/make_header.py")
    assert "p4reduce.sent" in (tmp_path / "wireshark" / "p4reduce.lua").read_text()
    python("tools/compile_p4.py")
    ranks = ["exec", "-n", "2", "--pcap", "--", sys.executable, "-c", FIELD]
    said = python("-m", "p4reduce_lab", *ranks).splitlines()
    # Beside other work a rank may also say that it waits.
    assert {"[0] 0 3.0", "[1] 1 3.0"} <= set(said), said

    captures = [f"build/exec/port{port}.pcap" for port in (1, 2)]
    frames = [json.loads(line) for line in python("-c", CAPTURED, *captures).splitlines()]
    most: dict[tuple[int, int], int] = {}
    for kind, slot, number, sent in frames:
        if kind == FrameKind.CONTRIBUTE:
            most[slot, number] = max(sent, most.get((slot, number), 0))
    results = [(most[slot, number], sent) for kind, slot, number, sent in frames if kind == 1]
    assert len(results) >= 2 * len(most)
    assert all(wanted == sent for wanted, sent in results)
    assert max(most.values()) > 0
