# SPDX-License-Identifier: Apache-2.0
"""What describes switches and links, and what it is told about mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_harness import cli_here
from p4reduce.control.controller_address import parse_address
from p4reduce_controller.topology.given import side_by_side
from p4reduce_controller.topology.net_file import NetFile, read
from p4reduce_controller.topology.switches import TopologyError, Uplink
from p4reduce_controller.values.mac_ip import format_ip, parse_ip, parse_mac

IP, MAC = parse_ip("10.77.255.254"), parse_mac("02:70:34:72:65:64")
RACKS = """
[switches.root]
p4runtime = "10.0.0.1:9559"
[switches.leaf-a]
p4runtime = "10.0.0.2:9559"
ports = "1-4"
stations = { "02:00:00:00:01:01" = 1 }
[switches.leaf-b]
p4runtime = "10.0.0.3:9559"
device_id = 7
ip = "10.9.0.1"
mac = "02:00:00:00:00:09"
ports = "1-3,8"
[[links]]
parent = "root:1"
child = "leaf-a:9"
[[links]]
parent = "root:2"
child = "leaf-b:9"
"""


def net(tmp_path: Path, text: str) -> NetFile:
    file = tmp_path / "net.toml"
    file.write_text(text)
    return read(file, IP, MAC, parse_address)


def test_two_racks(tmp_path: Path) -> None:
    found = net(tmp_path, RACKS)
    topology = found.topology
    assert topology.trees == {"root": ("root", "leaf-a", "leaf-b")}
    assert topology.uplinks == {"leaf-a": Uplink(9, "root", 1), "leaf-b": Uplink(9, "root", 2)}
    assert found.servers["leaf-b"] == ("10.0.0.3:9559", 7)
    a, b = topology.switches["leaf-a"], topology.switches["leaf-b"]
    assert (format_ip(a.ip), a.ports, a.stations) == (
        "10.77.255.252",
        (1, 2, 3, 4),
        ((0x020000000101, 1),),
    )
    assert (format_ip(b.ip), b.mac, b.ports) == ("10.9.0.1", 0x020000000009, (1, 2, 3, 8))
    assert topology.link_ports("root") == (1, 2)
    assert topology.spanning(["leaf-a"]) == ("leaf-a",)
    assert topology.spanning(["leaf-b", "leaf-a"]) == ("root", "leaf-a", "leaf-b")


A = '[switches.a]\np4runtime = "h:1"\n'
B = '[switches.b]\np4runtime = "h:2"\n'
C = '[switches.c]\np4runtime = "h:3"\n'


def link(parent: str, child: str) -> str:
    return f'[[links]]\nparent = "{parent}"\nchild = "{child}"\n'


WRONG = {
    "unknown switch": (
        A + link("a:1", "x:2"),
        "link 1.child: there is no switch 'x'; the file has a",
    ),
    "circle": (
        A + B + C + link("a:1", "b:1") + link("b:2", "c:1") + link("c:2", "a:2"),
        "the links form a circle: a -> c -> b -> a",
    ),
    "itself": (A + link("a:1", "a:2"), "the links form a circle: a -> a"),
    "two parents": (
        A + B + C + link("a:1", "c:1") + link("b:1", "c:2"),
        "link 2: c has two parents, a and b",
    ),
    "port twice": (
        A + B + C + link("a:1", "b:1") + link("a:1", "c:1"),
        "port 1 of a is used twice: by the link from b port 1 to a port 1 and by the link from c",
    ),
    "port of workers": (
        A + 'ports = "1-2"\n' + B + link("a:2", "b:1"),
        "port 2 of a is used twice: by workers (ports) and by the link from b port 1 to a port 2",
    ),
    "no address": ("[switches.a]\n", "switches.a needs p4runtime"),
    "bad address": ('[switches.a]\np4runtime = "here"\n', "switches.a.p4runtime: "),
    "same address": (A + '[switches.b]\np4runtime = "h:1"\n', "a and b have the same p4runtime"),
    "bad port": (A + B + link("a", "b:1"), "link 1.parent: 'a' is not a switch and port"),
    "CPU port": (A + B + link("a:255", "b:1"), "255 is the controller's own"),
    "bad ports": (A + 'ports = "4-1"\n', "switches.a.ports: '4-1' is not a range of ports"),
    "unknown key": (A + "port = 1\n", "switches.a has 'port'; known are device_id, ip, mac"),
    "bad name": ('[switches."a b"]\np4runtime = "h:1"\n', "a switch's name has 1 to 40 letters"),
    "no switch": ("", "there is no switch"),
    "same IP": (
        A + 'ip = "10.0.0.1"\n' + B + 'ip = "10.0.0.1"\n',
        "a and b have the same IP address, 10.0.0.1",
    ),
    "meeting address": (
        A + 'ip = "10.77.255.254"\n' + B + link("a:1", "b:1"),
        "a has an address that all switches of a tree share",
    ),
    "no TOML": ("switches", "net.toml: Expected '='"),
    "a number": ("[switches.a]\np4runtime = 5\n", "switches.a.p4runtime should be text in quotes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    text, complaint = WRONG[name]
    with pytest.raises(TopologyError) as caught:
        net(tmp_path, text)
    assert str(tmp_path / "net.toml") in str(caught.value)
    assert complaint in str(caught.value)


def test_side_by_side() -> None:
    topology = side_by_side(["a", "b"], ["1-4", "b=7"], (), IP, MAC)
    assert [each.ports for each in topology.switches.values()] == [(1, 2, 3, 4), (7,)]
    assert [each.ip for each in topology.switches.values()] == [IP, IP - 1]
    assert list(topology.trees) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing option '--switch'"),
        (["--switch", "a=h:1"], "Missing option '--ports'"),
        (["--switch", "h:1", "--switch", "h:2", "--ports", "1"], "several switches need names"),
        (["--switch", "a=h:1", "--switch", "a=h:2", "--ports", "1"], "two switches are called a"),
        (["--switch", "a=h:1", "--switch", "b=h:1", "--ports", "1"], "h:1 is given twice"),
        (["--switch", "a=h:1", "--ports", "b=1"], "there is no switch b, but a"),
        (["--switch", "a=h:1", "--switch", "b=h:2", "--ports", "a=1"], "switch b has no ports"),
        (["--switch", "a=h:1", "--ports", "1", "--ports", "2"], "were given already"),
        (["--switch", "a=h:1", "--ports", "9-1"], "'9-1' is not a range of ports"),
        (["--switch", "a=nowhere", "--ports", "1"], "nowhere"),
    ],
)
def test_the_command_line(arguments: list[str], complaint: str) -> None:
    done = cli_here("serve", *arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.output.split())
