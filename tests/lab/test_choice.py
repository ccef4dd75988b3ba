# SPDX-License-Identifier: Apache-2.0
"""What a run uses where this or that is installed, and what it says of it."""

from __future__ import annotations

import pytest
from p4reduce_lab.choice import choose
from p4reduce_lab.errors import ArgumentsError, UnavailableError
from p4reduce_lab.networks import mininet_net
from p4reduce_lab.switches import bmv2

NO_MININET = "Mininet needs root: run it with sudo"
NO_BMV2 = "simple_switch_grpc is not on PATH: install p4lang-bmv2 (docs/bmv2.md)"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A machine with what the parameter names of "mininet" and "bmv2"."""
    installed = request.param.split()
    monkeypatch.setattr(
        mininet_net, "unavailable", lambda: None if "mininet" in installed else NO_MININET
    )
    monkeypatch.setattr(bmv2, "unavailable", lambda: None if "bmv2" in installed else NO_BMV2)


@pytest.mark.parametrize(
    ("machine", "switch", "network", "picked", "why"),
    [
        ("mininet bmv2", "auto", "auto", ("bmv2", "mininet"), "BMv2 is installed"),
        ("mininet", "auto", "auto", ("embedded", "mininet"), f"no BMv2: {NO_BMV2}"),
        ("bmv2", "auto", "auto", ("embedded", "local"), f"no Mininet: {NO_MININET}"),
        ("", "auto", "auto", ("embedded", "local"), f"no Mininet: {NO_MININET}"),
        ("mininet bmv2", "embedded", "auto", ("embedded", "mininet"), "SWITCH as asked"),
        ("mininet bmv2", "auto", "local", ("embedded", "local"), "NET as asked"),
        ("mininet bmv2", "auto", "udp", ("embedded", "udp"), "NET as asked"),
        ("bmv2", "bmv2", "auto", ("bmv2", "local"), "SWITCH as asked"),
        ("mininet bmv2", "bmv2", "mininet", ("bmv2", "mininet"), "NET as asked"),
    ],
    indirect=["machine"],
)
@pytest.mark.usefixtures("machine")
def test_run_takes_the_nearest_to_the_real_thing(
    switch: str, network: str, picked: tuple[str, str], why: str
) -> None:
    choice = choose(switch, network, nearest_to_real=True)
    assert (choice.switch, choice.network) == picked
    assert why in choice.text


@pytest.mark.parametrize("machine", ["mininet bmv2"], indirect=True)
@pytest.mark.usefixtures("machine")
def test_other_commands_take_what_runs_everywhere() -> None:
    choice = choose("auto", "auto")
    assert (choice.switch, choice.network) == ("embedded", "local")


@pytest.mark.parametrize("machine", ["mininet"], indirect=True)
@pytest.mark.usefixtures("machine")
def test_a_bandwidth_takes_mininet() -> None:
    choice = choose("auto", "auto", bandwidth=100.0)
    assert (choice.network, choice.bandwidth) == ("mininet", 100.0)
    assert "links of 100 Mbit/s" in choice.text
    with pytest.raises(ArgumentsError, match="BW=100Mbit needs NET=mininet"):
        choose("auto", "local", bandwidth=100.0)
    with pytest.raises(ArgumentsError, match="requires SWITCH=embedded, not SWITCH=bmv2: BMv2 has"):
        choose("bmv2", "udp")


@pytest.mark.parametrize("machine", ["mininet bmv2"], indirect=True)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("network", "why"), [("auto", "the lab is a Mininet network"), ("mininet", "NET as asked")]
)
def test_the_lab_is_a_mininet_network_and_says_why(network: str, why: str) -> None:
    choice = choose("embedded", network, nearest_to_real=True, only_mininet=True)
    assert choice.network == "mininet"
    assert choice.text.endswith(f"(SWITCH as asked; {why})")


@pytest.mark.parametrize("machine", ["mininet bmv2", ""], indirect=True)
@pytest.mark.usefixtures("machine")
def test_the_lab_refuses_to_be_anything_else() -> None:
    with pytest.raises(ArgumentsError, match=r"NET=local .* the lab is a Mininet network"):
        choose("auto", "local", only_mininet=True)


@pytest.mark.parametrize("machine", [""], indirect=True)
@pytest.mark.usefixtures("machine")
def test_the_lab_without_mininet_says_what_is_missing() -> None:
    with pytest.raises(UnavailableError, match=f"the lab.* cannot run here: {NO_MININET}"):
        choose("auto", "auto", only_mininet=True)


@pytest.mark.parametrize("machine", [""], indirect=True)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("switch", "network", "bandwidth", "message"),
    [
        ("bmv2", "auto", None, "SWITCH=bmv2 cannot run here: simple_switch_grpc is not on PATH"),
        ("auto", "mininet", None, "NET=mininet cannot run here: Mininet needs root"),
        (
            "auto",
            "auto",
            10.0,
            "BW=10Mbit, for Mininet's links, cannot run here",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_install(
    switch: str, network: str, bandwidth: float | None, message: str
) -> None:
    with pytest.raises(UnavailableError) as refused:
        choose(switch, network, bandwidth=bandwidth, nearest_to_real=True)
    assert message in str(refused.value)
    assert refused.value.exit_code == 2
