# SPDX-License-Identifier: Apache-2.0
"""The demo over a tree: how it is asked for, and a whole run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from p4reduce_lab.cli import commands
from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.topology import LabTopology

ROOT = Path(__file__).parents[2]


def test_shapes() -> None:
    assert LabTopology.parse("2x4").ranks == 8
    assert LabTopology.parse("2x3x4").text == "a tree: a root, 2 spines, 6 leaves with 4 ranks each"
    assert LabTopology.parse("1x2x1").text == "a tree: a root, 1 spine, 2 leaves with 1 rank each"
    assert LabTopology.parse("1x4").text == "a tree: a root, 1 leaf with 4 ranks"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("2", "not a shape like 2x4"),
        ("2x", "not a shape like 2x4"),
        ("2x2x2x2", "not a shape like 2x4"),
        ("axb", "not a shape like 2x4"),
        ("0x4", "1 to 64 children, not 0"),
        ("65x1", "1 to 64 children, not 65"),
    ],
)
def test_what_is_no_tree(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        LabTopology.parse(text)
    assert text in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tree", "2x2", "--ranks", "3"], "--ranks 3 does not fit the tree, which has 4"),
        (["--tree", "9x9"], "tree 9x9 has 81 ranks; here it is 64 at most"),
        (
            ["--tree", "2x2", "--switches", "2"],
            "--switches (SWITCHES) and --tree (TREE) exclude each other",
        ),
    ],
)
def test_what_does_not_go_together(arguments: list[str], complaint: str) -> None:
    for command, more in (("run", []), ("run", ["--framework", "torch"]), ("exec", ["true"])):
        done = CliRunner().invoke(commands, [command, *arguments, *more])
        assert isinstance(done.exception, ArgumentsError), done.output
        assert complaint in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tree", "2x2", "--ports", "3"], "--ports 3 does not fit the tree, which has 4"),
        (
            ["--tree", "2x2", "--switches", "2"],
            "--switches (SWITCHES) and --tree (TREE) exclude each other",
        ),
    ],
)
def test_what_does_not_go_together_for_up(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(commands, ["up", *arguments])
    assert isinstance(done.exception, ArgumentsError), done.output
    assert complaint in str(done.exception)


@pytest.mark.parametrize(
    "option",
    [
        ["--tree", "2x1"],
        ["--switches", "2"],
        ["--pcap"],
        ["--bandwidth", "10Mbit"],
        ["--net", "mininet"],
        ["--switch", "bmv2"],
    ],
)
def test_exec_makes_no_switches_where_some_run(
    option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "unix:/nowhere")
    monkeypatch.setenv("P4REDUCE_INTERFACE", "unix:/nowhere{port}")
    done = CliRunner().invoke(commands, ["exec", *option, "true"])
    assert isinstance(done.exception, ArgumentsError), done.output
    assert f"{option[0]} belongs to `p4reduce-lab up`" in str(done.exception)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=ROOT,
        # Without what was given to the `make` that may run this test.
        env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_refuses_what_it_does_not_know() -> None:
    wrong = make("run", "Workers=2")
    assert wrong.returncode != 0
    assert "make run does not know Workers. It takes RANKS SWITCH BW PCAP WEB NET" in wrong.stderr
    assert "make lab does not know TREE" in make("lab", "TREE=2x2").stderr
    for given in ("RANKS=2", "TREE=2x2", "SWITCHES=2", "NET=udp"):
        assert make("run", given).returncode == 0, given


@pytest.mark.long
def test_a_tree_of_three_levels_trains_as_one_switch_does(tmp_path: Path) -> None:
    """The same weights, bit for bit, by a root, two spines with a leaf each, two ranks a leaf."""
    summaries = []
    for where in (["--tree", "2x1x2"], ["--ranks", "4"]):
        output = tmp_path / where[0][2:]
        options = ["--switch", "embedded", "--net", "local", "--steps", "6", "-o", str(output)]
        done = CliRunner().invoke(commands, ["run", *where, *options])
        assert done.exit_code == 0, f"{done.output}\n{done.exception}"
        summaries.append(json.loads((output / "summary.json").read_text()))
    tree, star = summaries
    assert tree["weights_sha256"] == star["weights_sha256"]
    assert (tree["switches"], tree["topology"]) == (5, "tree")
    assert (star["switches"], star["topology"]) == (1, "star")
    # Root and spines hear two and one child, the leaves two ranks each.
    rounds = tree["results"]
    assert tree["contributions_by_switch"] == [2 * rounds, rounds, rounds, 2 * rounds, 2 * rounds]
