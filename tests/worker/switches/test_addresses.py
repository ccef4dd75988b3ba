# SPDX-License-Identifier: Apache-2.0
"""What `interface=` and `controller=` say of several switches."""

from __future__ import annotations

from typing import Any

import p4reduce
import pytest
from p4reduce.environment import Placement
from p4reduce.switches.addresses import SwitchAddress, switch_addresses

PLACE = Placement(2, 4, 0)


def test_lists_and_commas_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [SwitchAddress("veth2", "host:1"), SwitchAddress("udp:b:7002", "host:2")]
    given = ["veth{rank}", "udp:b:700{rank}"]
    assert switch_addresses(["host:1", "host:2"], given, PLACE, "job") == wanted
    assert switch_addresses("host:1,host:2", ",".join(given), PLACE, "job") == wanted
    monkeypatch.setenv("P4REDUCE_INTERFACE", "veth{rank}, udp:b:700{rank}")
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "host:1,host:2")
    assert switch_addresses(None, None, PLACE, "job") == wanted


def test_one_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "unix:/c.sock")
    assert switch_addresses(None, "unix:/p{port}.sock", PLACE, "x" * 100) == [
        SwitchAddress("unix:/p3.sock", "unix:/c.sock")
    ]


def test_offload_belongs_to_its_interface() -> None:
    found = switch_addresses("a:1,b:2", "veth0,offload,veth1,offload", PLACE, "job")
    assert [address.port for address in found] == ["veth0,offload", "veth1,offload"]


def test_one_controller_has_switches_with_names() -> None:
    """A path with an equals sign is no name."""
    assert switch_addresses("c:1", "a=veth{rank},b=udp:h:7", PLACE, "job") == [
        SwitchAddress("veth2", "c:1", "a"),
        SwitchAddress("udp:h:7", "c:1", "b"),
    ]
    assert switch_addresses("c:1", "unix:/x=y.sock", PLACE, "job") == [
        SwitchAddress("unix:/x=y.sock", "c:1")
    ]
    assert switch_addresses("c:1", "leaf-1=eth0", PLACE, "job") == [
        SwitchAddress("eth0", "c:1", "leaf-1")
    ]
    assert [address.switch for address in switch_addresses("c:1,d:1", "a=x,a=y", PLACE, "job")] == [
        "a",
        "a",
    ]


@pytest.mark.parametrize(
    ("controller", "interface", "job", "message"),
    [
        ("a:1", "x,y", "job", "2 interfaces (x, y) and 1 controller (a:1)"),
        ("a:1", "a=x,y", "job", "each switch's name before its interface, as in a=eth1,b=eth2"),
        ("a:1", "a=x,a=y", "job", "controller a:1 (switch a) is given twice"),
        ("a:1,b:1", "x", "job", "1 interface (x) and 2 controllers (a:1, b:1)"),
        ("a:1,b:1", "x,x", "job", "interface x is given twice"),
        ("a:1,a:1", "x,y", "job", "controller a:1 is given twice"),
        ("a:1,b", "x,y", "job", "'b' is not of the form HOST:PORT"),
        ("a:1,b:1", "x,,y", "job", "an empty entry: x,,y"),
        ("a:1,b:1", "x,y", "j" * 85, "a name of 85 characters; with several switches 84"),
        (
            ",".join(f"h:{n}" for n in range(17)),
            ",".join(f"i{n}" for n in range(17)),
            "job",
            "16 are possible at most",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    controller: str, interface: str, job: str, message: str
) -> None:
    with pytest.raises(p4reduce.ConfigurationError) as caught:
        switch_addresses(controller, interface, PLACE, job)
    assert message in str(caught.value)


@pytest.mark.parametrize("argument", ["interface", "controller"])
@pytest.mark.parametrize("value", [3, ["veth0", 3], b"veth0"])
def test_what_is_no_text_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{argument}=.*a list of some"):
        p4reduce.init(0, 1, **{argument: value})
