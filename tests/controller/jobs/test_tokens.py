# SPDX-License-Identifier: Apache-2.0
"""Job tokens: who may join and end a job that has one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import p4reduce
import pytest
from controller_harness import RunningController, SwitchProcess, cli_here, eventually
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlError
from p4reduce_controller.jobs import tokens
from p4reduce_controller.values.token_hash import TokenHash

TOKEN = "correct-horse-battery"
OTHER = "wrong-horse-no-battery"


def refused(call: Callable[[], object], *says: str) -> None:
    with pytest.raises(ControlError) as caught:
        call()
    assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    for text in says:
        assert text in str(caught.value)
    for secret in (TOKEN, OTHER):
        assert secret not in str(caught.value)


def join(controller: RunningController, rank: int, token: str, job: str = "train") -> pb.JoinReply:
    return controller.call("Join", job=job, rank=rank, world_size=2, token=token)  # type: ignore[no-any-return]


def test_joining_takes_the_token(controller: RunningController) -> None:
    assert controller.call("CreateJob", name="train", world_size=2, token=TOKEN).has_token
    refused(lambda: join(controller, 0, OTHER), "that is not the right one")
    refused(lambda: join(controller, 0, ""), "none was given")
    refused(lambda: join(controller, 0, TOKEN[:-1]), "that is not the right one")
    assert not controller.job("train").members
    join(controller, 0, TOKEN)
    join(controller, 1, TOKEN)


def test_the_first_rank_may_bring_it(controller: RunningController) -> None:
    join(controller, 0, TOKEN)
    refused(lambda: join(controller, 1, ""), "requires a token")
    join(controller, 1, TOKEN)


def test_a_rank_with_a_token_does_not_join_without(controller: RunningController) -> None:
    """Somebody was there first and made the job for all: its sums would not be a secret."""
    join(controller, 0, "")
    refused(lambda: join(controller, 1, TOKEN), "was made without a token")


def test_deleting_takes_the_token(controller: RunningController) -> None:
    controller.call("CreateJob", name="train", world_size=2, token=TOKEN)
    refused(lambda: controller.call("DeleteJob", name="train"), "none was given")
    refused(lambda: controller.call("DeleteJob", name="train", token=OTHER), "not the right one")
    assert controller.job("train").state == pb.FORMING
    assert controller.call("DeleteJob", name="train", token=TOKEN).state == pb.ENDED


def test_a_job_without_a_token_is_anybodys(controller: RunningController) -> None:
    assert not controller.call("CreateJob", name="train", world_size=2).has_token
    assert controller.call("DeleteJob", name="train").state == pb.ENDED


def test_a_new_life_has_its_own(controller: RunningController) -> None:
    controller.call("CreateJob", name="train", world_size=2, token=TOKEN)
    controller.call("DeleteJob", name="train", token=TOKEN)
    join(controller, 0, OTHER)
    refused(lambda: join(controller, 1, TOKEN), "not the right one")


@pytest.mark.parametrize(
    "token", ["short", "x" * 201, "with\nnewline-and-more", "größer-als-ascii-ist"]
)
def test_what_is_no_token(controller: RunningController, token: str) -> None:
    with pytest.raises(ControlError, match="16 to 200") as caught:
        join(controller, 0, token)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert token not in str(caught.value)


# -- What is kept --------------------------------------------------------------------------------


def test_only_a_hash_is_kept() -> None:
    one, again = TokenHash.of(TOKEN), TokenHash.of(TOKEN)
    assert one.matches(TOKEN)
    assert not one.matches(OTHER)
    assert not one.matches("")
    assert one.digest != again.digest, "equal tokens would show"
    assert TOKEN not in repr(one)


def test_the_operators_token_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    made = tokens.operator_token(directory)
    path = directory / tokens.OPERATOR_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    token = tokens.read_operator_token(directory)
    assert token is not None
    assert made.matches(token)
    assert tokens.operator_token(directory).matches(token), "a second controller has it changed"
    assert [each.name for each in directory.iterdir()] == [tokens.OPERATOR_FILE]


@pytest.mark.parametrize("spoil", ["readable", "empty"])
def test_an_operators_token_that_others_know(tmp_path: Path, spoil: str) -> None:
    tokens.operator_token(tmp_path)
    path = tmp_path / tokens.OPERATOR_FILE
    if spoil == "readable":
        path.chmod(0o644)
    else:
        path.write_text("")
    assert tokens.read_operator_token(tmp_path) is None
    with pytest.raises(ValueError, match=r"operator\.token is not readable by its owner alone"):
        tokens.operator_token(tmp_path)


# -- The command line ----------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Without a state directory at hand that has a token."""
    monkeypatch.setenv("P4REDUCE_STATE_DIR", str(tmp_path / "another"))
    monkeypatch.delenv("P4REDUCE_TOKEN", raising=False)
    return monkeypatch


def test_the_command_line(
    controller: RunningController, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = ["--controller", controller.address, "--json"]
    made = cli_here(*there, "job", "create", "train", "-n", "2", "--new-token")
    token = json.loads(made.stdout)["token"]
    assert len(token) >= 32
    assert json.loads(made.stdout)["has_token"]
    join(controller, 0, token)

    without = cli_here(*there, "job", "delete", "train")
    assert without.exit_code == 1
    assert "deleting job 'train' requires a token, and none was given" in without.stderr
    environment.setenv("P4REDUCE_TOKEN", OTHER)
    assert cli_here(*there, "job", "delete", "train").exit_code == 1
    # A worker's token in the environment does not keep the operator from using his own.
    environment.setenv("P4REDUCE_STATE_DIR", str(tmp_path / "state"))
    assert cli_here(*there, "job", "delete", "train").exit_code == 0

    shown = cli_here(
        "--controller", controller.address, "job", "create", "two", "-n1", "--token", TOKEN
    )
    assert TOKEN not in shown.stdout
    assert "needed to join or delete it" in shown.stdout
    environment.delenv("P4REDUCE_STATE_DIR")
    assert cli_here(*there, "job", "delete", "two", "--token", TOKEN).exit_code == 0


def test_workers_have_it_in_the_environment(
    start: Callable[..., RunningController],
    mortal_switch: SwitchProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = start(mortal_switch)
    controller.call("CreateJob", name="train", world_size=1, token=TOKEN)
    place = {
        "rank": 0,
        "world_size": 1,
        "job": "train",
        "controller": controller.address,
        "interface": f"unix:{mortal_switch.port_path(1)}",
    }
    monkeypatch.setenv("P4REDUCE_TOKEN", OTHER)
    with pytest.raises(p4reduce.AdmissionError, match="requires a token") as caught:
        p4reduce.init(**place)
    assert OTHER not in str(caught.value)
    monkeypatch.setenv("P4REDUCE_TOKEN", TOKEN)
    p4reduce.init(**place).close()
    eventually(lambda: controller.call("GetSwitch").slots_free == 1024, "it has left")
