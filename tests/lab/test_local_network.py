# SPDX-License-Identifier: Apache-2.0
"""`p4reduce_lab.local` and the pytest plugin: a real switch for scripts, notebooks and tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import p4reduce
import p4reduce_lab
import pytest
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import Flag, FrameKind
from p4reduce_lab.local_network import environment
from scapy.utils import rdpcap

pytest_plugins = ["pytester"]

COMPILED = os.environ.get("P4REDUCE_CACHE_DIR") or str(Path.home() / ".cache" / "p4reduce")


def test_a_network_for_threads_children_and_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")  # a rank of something else may start it
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "unix:/nowhere")
    before = dict(os.environ)
    with p4reduce_lab.local(ranks=2) as network:
        assert network.ranks == 2
        assert "RANK" not in os.environ

        def function(comm: p4reduce.Communicator, factor: float) -> list[float]:
            mine = np.full(3, factor * (comm.rank + 1), np.float32)
            return [float(number) for number in comm.allreduce(mine)]

        assert network.run(function, 2.0) == [[6.0] * 3] * 2
        got: list[int] = []

        def rank_of(rank: int) -> None:
            with p4reduce.init(rank, 2) as comm:
                got.append(int(comm.allreduce(np.ones(1, np.int32))[0]))

        thread = threading.Thread(target=rank_of, args=(0,))
        thread.start()
        child = subprocess.run(
            [
                sys.executable,
                "-c",
                "import p4reduce, numpy\n"
                "with p4reduce.init(1, 2) as comm:\n"
                "    print(comm.allreduce(numpy.ones(1, numpy.int32))[0])",
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        thread.join(100)
        assert (got, child.stdout) == ([2], "2\n"), child.stderr
    assert dict(os.environ) == before


def test_children_have_the_lanes_that_the_switch_was_started_with() -> None:
    rank = "import p4reduce, sys; print(p4reduce.init(int(sys.argv[1]), 2).size)"
    program = f"""
import subprocess, sys, p4reduce_lab
with p4reduce_lab.local(ranks=2):
    child = [sys.executable, "-c", {rank!r}]
    ranks = [subprocess.Popen([*child, str(rank)]) for rank in range(2)]
    sys.exit(any([one.wait() for one in ranks]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "P4REDUCE_LANES": "64"},  # which a process reads once
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n2\n"), done.stderr


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LINK", "single")
    monkeypatch.setenv("P4REDUCE_JOB", "mine")
    before = dict(os.environ)
    with environment({"P4REDUCE_LINK": "batch", "P4REDUCE_INTERFACE": "unix:/port"}):
        assert os.environ["P4REDUCE_LINK"] == "batch"
        assert "P4REDUCE_JOB" not in os.environ
    assert dict(os.environ) == before


def test_a_tree_and_switches_side_by_side_are_refused() -> None:
    with (
        pytest.raises(p4reduce.ConfigurationError, match=r"2x2.* 2 switches .*exclude each other"),
        p4reduce_lab.local(4, switches=2, tree="2x2"),
    ):
        pass
    with p4reduce_lab.local(4, tree="2x2") as network:
        assert network.run(lambda comm: comm.size) == [4] * 4


def test_an_error_of_a_rank_comes_out() -> None:
    def function(comm: p4reduce.Communicator) -> None:
        if comm.rank == 1:
            raise ZeroDivisionError("rank 1's own")
        comm.barrier()

    with p4reduce_lab.local(ranks=2) as network:
        with pytest.raises(ZeroDivisionError, match="rank 1's own"):
            network.run(function)
        assert network.run(lambda comm: comm.size) == [2, 2]  # and the network serves on


_TESTS = """
import numpy, os, pytest, p4reduce

def total(comm):
    return comm.allreduce(numpy.ones(3, numpy.float32)).tolist()

def test_four(p4reduce_network):
    assert p4reduce_network.run(total) == [[4.0] * 3] * 4

@pytest.mark.p4reduce(ranks=2)
def test_two(p4reduce_network):
    assert p4reduce_network.run(total) == [[2.0] * 3] * 2

def test_the_first_again(p4reduce_network):
    assert p4reduce_network.ranks == 4
    assert os.environ["P4REDUCE_CONTROLLER"] == p4reduce_network.variables["P4REDUCE_CONTROLLER"]

def test_without():
    assert "P4REDUCE_CONTROLLER" not in os.environ
"""


def test_the_fixture_is_a_real_switch(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", COMPILED)  # pytester has a home of its own
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)
    pytester.makepyfile(_TESTS)
    done = pytester.runpytest_subprocess("-p", "p4reduce_lab.pytest_plugin", "--strict-markers")
    done.assert_outcomes(passed=4)


def test_the_plugin_is_found_by_its_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.partition("[project.entry-points.pytest11]\n")[2].partition("\n\n")[0]
    assert section == 'p4reduce = "p4reduce_lab.pytest_plugin"'


def test_captures_have_every_frame_of_a_rank(tmp_path: Path) -> None:
    with p4reduce_lab.local(ranks=2, captures=tmp_path / "new") as network:
        network.run(lambda comm: comm.allreduce(np.ones(3 * 256, np.float32)))
    captures = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert captures == ["port1.pcap", "port2.pcap"]
    frames = [frame[Aggregation] for frame in rdpcap(str(tmp_path / "new" / "port1.pcap"))]
    sums = [
        frame
        for frame in frames
        if frame.kind == FrameKind.RESULT and Flag.PAYLOAD & int(frame.flags)
    ]
    assert {frame.block for frame in sums} == {0, 1, 2}


def test_faults_are_injected_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_FAULTS", "drop=0.3,seed=1")
    ones = np.ones(30 * 256, np.float32)

    def repeats(comm: p4reduce.Communicator) -> int:
        assert set(comm.allreduce(ones)) == {2.0}
        return comm.stats.retransmissions

    with p4reduce_lab.local(ranks=2) as network:
        assert sum(network.run(repeats)) > 0
