# SPDX-License-Identifier: Apache-2.0
"""What the planner answers, and `p4reduce-lab plan`."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from p4reduce.switches.addresses import MAX_SWITCHES
from p4reduce_lab.cli import commands
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.planning.advice import RING, Advice, Question, advise
from p4reduce_lab.planning.commands import commands as lines_to_run
from p4reduce_lab.planning.network import MOST_SIDE_BY_SIDE, SWITCHES, PlannedLink
from p4reduce_lab.planning.profile import Profile
from p4reduce_lab.planning.report import as_json, text
from p4reduce_lab.planning.schemes import Cluster
from p4reduce_lab.planning.training import even_step

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch (make test-torch)"
)
SMALL = even_step(0.1, 500_000, 100_000, batch=32)


def answer(cluster: Cluster, density: float = 1.0) -> Advice:
    return advise(Question(cluster, SMALL, density))


def test_where_links_are_the_limit_one_switch_nearly_halves_what_a_ring_takes() -> None:
    advice = answer(Cluster(8, PlannedLink(1e8, 1e-5)))
    ring, switch, int16, int8 = advice.options[:4]
    assert ring.name == RING
    assert ring.time.communication / switch.time.communication == pytest.approx(1.75, rel=0.05)
    assert switch.time.communication / int16.time.communication == pytest.approx(2, rel=0.05)
    # Each of the five sums also takes what lanes do not shorten.
    assert switch.time.communication / int8.time.communication == pytest.approx(3.6, rel=0.05)
    assert advice.limit[1] == "the ranks' links"
    assert advice.best.name == "one switch"  # the fastest with a link per rank
    further = next(one for one in advice.options if one.name.startswith("2 switches side by side"))
    assert further.faster > advice.best.faster
    said = next(reason for reason in advice.reasons if reason.startswith("With more hardware"))
    assert f"{further.faster:.2f} times as fast as with the ring: {further.name}" in said
    assert ring.faster == 1.0


def test_where_the_switch_is_the_limit_it_is_named() -> None:
    advice = answer(Cluster(8, PlannedLink(1e9, 1e-5), switch=SWITCHES["bmv2"]))
    assert advice.limit[1] == "the switches' cores"
    assert advice.side_by_side == 41  # 8 · 46 µs for what a link does in 9 µs
    assert any("41 switches side by side" in reason for reason in advice.reasons)
    assert any("A job can have 16." in reason for reason in advice.reasons)
    assert any(option.name.startswith("16 switches side by side,") for option in advice.options)
    assert MOST_SIDE_BY_SIDE == MAX_SWITCHES


def test_where_nothing_helps_it_says_so() -> None:
    link = PlannedLink(1e9, 1e-5)
    advice = answer(Cluster(2, link, switch=SWITCHES["bmv2"], trunk=link))
    assert advice.best.name == RING
    assert any("no way to sum whole float32 gradients" in reason for reason in advice.reasons)


def test_the_switchs_host_needs_the_bandwidth_of_all_ranks_links() -> None:
    link, switch = PlannedLink(1e9, 1e-5), SWITCHES["embedded-udp"]
    own = answer(Cluster(8, link, switch=switch))
    shared = answer(Cluster(8, link, switch=switch, trunk=link))
    wide = answer(Cluster(8, link, switch=switch, trunk=PlannedLink(8e9, 1e-5)))
    float32, int8 = (
        next(one for one in shared.options if one.name == name)
        for name in ("one switch", "one switch, int8")
    )
    said = next(reason for reason in own.reasons if "--one-interface" in reason)
    assert "one interface for all 8 ranks instead, that needs 8 Gbit/s" in said
    assert f"{float32.faster:.2f} (float32) and {int8.faster:.2f} (int8)" in said
    assert own.best.name == "one switch"
    assert shared.best.name == RING
    assert any("It is no limit from 8 Gbit/s on" in reason for reason in shared.reasons)
    assert any("8 switches side by side, 8 machines" in reason for reason in shared.reasons)
    assert not any("interface for all" in reason for reason in wide.reasons)
    assert wide.options[1].faster == pytest.approx(own.options[1].faster, rel=0.1)


@pytest.mark.parametrize("kind", ["hardware", "tofino2", "embedded-memory"])
def test_ports_of_hardware_and_of_shared_memory_are_no_interfaces_of_a_host(kind: str) -> None:
    advice = answer(Cluster(8, PlannedLink(1e9, 1e-5), switch=SWITCHES[kind]))
    assert not any("--one-interface" in reason for reason in advice.reasons)


def test_tofino_2_sums_frames_of_64_lanes() -> None:
    link = PlannedLink(1e8, 1e-5)
    wide, narrow = (answer(Cluster(4, link, switch=SWITCHES[n])) for n in ("hardware", "tofino2"))
    sums = [advice.options[1].time.communication for advice in (narrow, wide)]
    # 358 bytes of Ethernet for 64 lanes, and 1,126 for 256.
    assert sums[0] / sums[1] == pytest.approx(4 * 358 / 1126, rel=0.02)
    assert narrow.options[1].octets / wide.options[1].octets == pytest.approx(1.21, rel=0.01)
    run = lines_to_run(narrow, narrow.options[1])
    assert any("Tofino 2 that runs p4src/tofino2.p4" in line for line in run)
    started = [line for line in run if "p4reduce" in line and not line.startswith("#")]
    assert len(started) == 2
    assert all(line.startswith("P4REDUCE_LANES=64 ") for line in started)
    assert any(line.startswith("export P4REDUCE_LANES=64 ") for line in run)
    assert not any("P4REDUCE_LANES" in line for line in lines_to_run(wide, wide.options[1]))


@pytest.mark.parametrize("buckets", [1, 2])
def test_one_bucket_does_not_overlap(buckets: int) -> None:
    step = even_step(0.1, 500_000, 500_000 // buckets)
    advice = advise(Question(Cluster(4, PlannedLink(1e8, 1e-5)), step))
    equal = all(one.time.overlapped == one.time.after for one in advice.options)
    said = any("All gradients fit one bucket" in reason for reason in advice.reasons)
    assert equal is said is (buckets == 1)


def test_zero_blocks_stay_at_home() -> None:
    advice = answer(Cluster(4, PlannedLink(1e7)), density=0.01)
    dense = advice.options[1]
    sparse = next(one for one in advice.options if "of the blocks" in one.name)
    assert sparse.octets < dense.octets / 10
    # The union of four ranks' blocks is 3.9 % of all.
    assert dense.time.communication / sparse.time.communication == pytest.approx(20, rel=0.35)
    assert advice.best is sparse


def test_more_than_64_ranks_take_a_tree() -> None:
    advice = answer(Cluster(1000, PlannedLink(1e9, 1e-6)))
    assert advice.options[1].name == "tree of 33 switches with up to 32 children"
    assert advice.network.fanouts == (32, 32)
    assert any("32 by 32" in reason for reason in advice.reasons)
    assert "--topology" in "".join(lines_to_run(advice, advice.best))
    assert not any("side by side" in one.name for one in advice.options)


def test_the_answer_as_text_and_as_json() -> None:
    advice = answer(Cluster(4, PlannedLink(1e8, 1e-5)))
    said = text(advice)
    for option in advice.options:
        assert option.name in said
    for reason in advice.reasons:
        assert reason in said
    figures = json.loads(json.dumps(as_json(advice)))
    assert figures["slots"] == advice.pool.slots
    assert [one["name"] for one in figures["options"]] == [one.name for one in advice.options]


# -- The command ---------------------------------------------------------------------------------


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["plan", *arguments])


def test_the_command_answers(tmp_path: Path) -> None:
    found = plan(
        "--parameters",
        "1e5",
        "--compute",
        "20ms",
        "--ranks",
        "4",
        "--bandwidth",
        "10Mbit",
        "--json",
        str(tmp_path / "plan.json"),
        "--plot",
        str(tmp_path / "plan.png"),
    )
    assert found.exit_code == 0, found.output
    assert "100,000 parameters, 4 ranks, links of 10 Mbit/s" in found.output
    assert json.loads((tmp_path / "plan.json").read_text())["best"]
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --parameters and --compute, or --profile"),
        (("--parameters", "1e6"), "give --parameters and --compute"),
        (("--parameters", "1e6", "--compute", "0s"), "above 0"),
        (("--parameters", "0", "--compute", "1s"), "0 parameters"),
        (("--parameters", "1e6", "--compute", "1s", "--bandwidth", "0bit"), "rate of 0"),
        (("--parameters", "1e6", "--compute", "1s", "x"), "only a script"),
        (("--profile", __file__, "--parameters", "1e6"), "--profile measures"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: tuple[str, ...], message: str) -> None:
    found = plan(*arguments)
    assert isinstance(found.exception, ArgumentsError)
    assert message in str(found.exception)


def test_the_interface_of_the_switchs_host() -> None:
    about = ("--parameters", "1e6", "--compute", "10ms")
    one = plan(*about, "--one-interface").output
    assert "one interface for all 8 ranks, of 1 Gbit/s" in one
    wider = plan(*about, "--one-interface", "--switch-link", "2Gbit").output
    assert "one interface for all 8 ranks, of 2 Gbit/s" in wider
    assert "instead, that needs 8 Gbit/s" in plan(*about).output
    refused = plan(*about, "--switch-link", "0bit")
    assert "rate of 0" in str(refused.exception)


def test_a_number_with_a_wrong_unit_is_refused() -> None:
    found = plan("--parameters", "1e6", "--compute", "12")
    assert found.exit_code == 2
    assert "'12' is not a time such as 120ms" in found.output


# -- Scripts -------------------------------------------------------------------------------------


def test_parameters_are_put_together_in_the_order_of_their_gradients() -> None:
    found = Profile(0.2, 3, [10, 20, 100, 5], [0.4, 0.5, 0.8, 0.9], density=0.5)
    step = found.step(30, batch=8)
    assert step.buckets == (30, 100, 5)
    assert step.ready == (0.5, 0.8, 0.9)
    assert step.batch == 8


SCRIPT = """
import sys, time
import torch
assert __name__ == "__main__" and sys.argv[1:] == ["--epochs", "1"]
model = torch.nn.Sequential(torch.nn.EmbeddingBag(4096, 64), torch.nn.Linear(64, 256))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    time.sleep(0.05)  # so long that a step's time is known to a third at least
    optimiser.zero_grad()
    model(torch.arange(16).reshape(2, 8)).sum().backward()
    optimiser.step()
"""


@needs_torch
@pytest.mark.long
def test_a_script_is_measured(tmp_path: Path) -> None:
    from p4reduce_lab.planning.profile import profile

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("STEPS", "10_000"))
    found = profile([str(script), "--epochs", "1"], steps=3)
    assert found.steps == 3
    assert sorted(found.sizes) == [256, 64 * 256, 64 * 4096]
    assert found.sizes[-1] == 64 * 4096  # the first layer's comes last
    assert found.compute >= 0.05
    assert all(0 < share <= 1 for share in found.ready)
    # 16 rows of 64 are 4 blocks of the embedding's 1,024; all 64 and the one of the other layer.
    assert found.density == pytest.approx((4 + 64 + 1) / (1024 + 64 + 1))


@needs_torch
@pytest.mark.long
def test_a_script_that_takes_no_steps_is_named(tmp_path: Path) -> None:
    from p4reduce_lab.planning.profile import profile

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("STEPS", "1") + "raise ValueError('no data')\n")
    with pytest.raises(
        LabError, match=r"train\.py ended \(exit code 1\) before .* 6 steps(?s:.)*no data"
    ):
        profile([str(script), "--epochs", "1"], steps=3)


@needs_torch
@pytest.mark.long
def test_what_a_script_has_started_ends_with_its_profile(tmp_path: Path) -> None:
    """A process that it leaves behind holds its output open; nobody waits for that."""
    from p4reduce_lab.planning.profile import profile

    script, left = tmp_path / "train.py", tmp_path / "left"
    begin = "import pathlib, subprocess\nleft = subprocess.Popen(['sleep', '10000'])\n"
    begin += f"pathlib.Path({str(left)!r}).write_text(str(left.pid))\n"
    script.write_text(begin + SCRIPT.replace("STEPS", "10_000"))
    assert profile([str(script), "--epochs", "1"], steps=3).steps == 3
    status = Path("/proc", left.read_text(), "status")
    end = time.monotonic() + 60.0
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < end, "it runs on"
        time.sleep(0.01)


@needs_torch
@pytest.mark.long
def test_a_script_has_exit_codes_of_its_own(tmp_path: Path) -> None:
    from p4reduce_lab.planning.profile import profile

    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(LabError, match=r"train\.py ended \(exit code 3\)"):
        profile([str(script)], steps=3)


@needs_torch
@pytest.mark.long
def test_a_script_that_takes_too_long_says_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p4reduce_lab.planning import profile

    monkeypatch.setattr(profile, "TIMEOUT", 5.0)
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('loading data', flush=True)\ntime.sleep(1000)")
    with pytest.raises(LabError, match=r"took no 6 steps within 5 s:(?s:.*)"):
        profile.profile([str(script)], steps=3)


def test_a_script_that_is_not_there_is_named() -> None:
    from p4reduce_lab.planning.profile import profile

    with pytest.raises(ArgumentsError, match=r"'nowhere\.py'"):
        profile(["nowhere.py"])
    with pytest.raises(ArgumentsError, match="0 steps"):
        profile([__file__], steps=0)
