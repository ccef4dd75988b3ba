# SPDX-License-Identifier: Apache-2.0
"""Options that several commands of `p4reduce-lab` share, and types of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from p4reduce_native.cores import MAX_CORES

from p4reduce_lab import units
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.limits import MAX_RANKS

if TYPE_CHECKING:
    from p4reduce_lab.choice import LabChoice
    from p4reduce_lab.topology import LabTopology

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.4

_F = TypeVar("_F", bound=Callable[..., Any])

MAX_SWITCHES = 8


class Measured(_ParamType):
    """A number as a function reads it, which raises ValueError: with a unit, for one."""

    def __init__(self, name: str, read: Callable[[str], float]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, context: Any) -> float:
        if not isinstance(value, str):
            return float(value)
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, context)


class Listed(_ParamType):
    """Values of a type, with commas between them."""

    name = "list"

    def __init__(self, each: _ParamType) -> None:
        self._each = each

    def convert(self, value: Any, param: click.Parameter | None, context: Any) -> list[Any]:
        return [self._each.convert(one, param, context) for one in value.split(",")]


RATE = Measured("rate", units.bits_per_second)
TIME = Measured("time", units.seconds)
SIZE = Measured("size", units.octets)
COUNT = Measured("count", units.count)
RANKS = click.IntRange(1, MAX_RANKS)


def ranks_option(what: str = "How many ranks, each a process of its own.") -> Callable[[_F], _F]:
    """Return --ranks, the number of ranks, for every command."""
    return click.option("--ranks", "-n", type=RANKS, default=4, show_default=True, help=what)


def output_option(default: str, what: str) -> Callable[[_F], _F]:
    """Return --output, a directory."""
    return click.option(
        "--output",
        "-o",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(default),
        show_default=True,
        help=what,
    )


switch_option = click.option(
    "--switch",
    type=click.Choice(["auto", "embedded", "bmv2"]),
    default="auto",
    envvar="SWITCH",
    show_envvar=True,
    show_default=True,
    help="Which switch runs the P4 program.",
)
network_option = click.option(
    "--net",
    type=click.Choice(["auto", "local", "udp", "mininet"]),
    default="auto",
    envvar="NET",
    show_envvar=True,
    show_default=True,
    help="What connects ranks and switch.",
)


def _possible_bandwidth(
    context: click.Context, option: click.Parameter, rate: float | None
) -> float | None:
    from p4reduce_lab.networks.mininet_net import check_bandwidth

    if rate is None:
        return None
    try:
        check_bandwidth(rate / 1e6)
    except LabError as error:
        raise click.BadParameter(str(error)) from None
    return rate / 1e6


bandwidth_option = click.option(
    "--bandwidth",
    type=RATE,
    envvar="BW",
    show_envvar=True,
    callback=_possible_bandwidth,
    help="The rate of each of Mininet's links, such as 100Mbit.  [default: not limited]",
)
"""In Mbit/s for the command."""

pcap_option = click.option(
    "--pcap/--no-pcap",
    envvar="PCAP",
    show_envvar=True,
    help="Leave a capture of each of the switch's ports with the logs.",
)


web_option = click.option(
    "--web/--no-web",
    envvar="WEB",
    show_envvar=True,
    help="Show the live page in a browser, at port 8080 of this machine or the next that is free.",
)


def _read_tree(
    context: click.Context, option: click.Parameter, text: str | None
) -> LabTopology | None:
    from p4reduce_lab.topology import LabTopology

    tree = None if text is None else LabTopology.parse(text)
    if tree is not None and tree.ranks > MAX_RANKS:
        raise ArgumentsError(f"tree {text} has {tree.ranks} ranks; here it is {MAX_RANKS} at most")
    return tree


tree_option = click.option(
    "--tree",
    envvar="TREE",
    show_envvar=True,
    callback=_read_tree,
    metavar="LEAVESxRANKS",
    help="Use a tree of switches: 2x4 is a root with two leaves of four ranks each; 2x2x4 has "
    "spines between.",
)
switches_option = click.option(
    "--switches",
    type=click.IntRange(1, MAX_SWITCHES),
    default=1,
    envvar="SWITCHES",
    show_envvar=True,
    show_default=True,
    help="The number of switches side by side.",
)
cores_option = click.option(
    "--cores",
    type=click.IntRange(1, MAX_CORES),
    default=1,
    envvar="CORES",
    show_envvar=True,
    show_default=True,
    help="The number of data planes per switch, each a process, at the same ports.",
)


@dataclass(frozen=True)
class SystemWish:
    """The values of `system_options`."""

    switch: str
    net: str
    pcap: bool
    bandwidth: float | None = None
    switches: int = 1
    cores: int = 1
    tree: LabTopology | None = None
    web: bool = False

    def choose(self, *, nearest_to_real: bool = False, only_mininet: bool = False) -> LabChoice:
        """Return which switch and network can be had; see `p4reduce_lab.choice.choose`."""
        from p4reduce_lab.choice import choose

        choice = choose(
            self.switch,
            self.net,
            bandwidth=self.bandwidth,
            nearest_to_real=nearest_to_real,
            only_mininet=only_mininet,
        )
        return replace(choice.with_cores(self.cores), pcap=self.pcap, web=self.web)

    def topology(self, context: click.Context, option: str, ranks: int) -> LabTopology:
        """Return the switches, for a number of ranks, which a tree determines if there is one.

        Raises ArgumentsError if some options exclude others.
        """
        from p4reduce_lab.topology import LabTopology

        tree = self.tree
        if tree is None:
            return LabTopology.side_by_side(ranks, self.switches)
        typed = context.get_parameter_source(option) is not ParameterSource.DEFAULT
        if typed and ranks != tree.ranks:
            raise ArgumentsError(
                f"--{option} {ranks} does not fit the tree, which has {tree.ranks}"
            )
        if self.cores > 1:
            raise ArgumentsError(
                "--cores (CORES) and --tree (TREE) exclude each other: a tree's links lead to one "
                "core"
            )
        if self.switches > 1:
            raise ArgumentsError("--switches (SWITCHES) and --tree (TREE) exclude each other")
        return tree


def system_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of switches and network, but those named.

    The command gets their values as the argument `wish`, a `SystemWish`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def collected(*args: Any, **given: Any) -> None:
            wish = {
                one.name: given.pop(one.name) for one in fields(SystemWish) if one.name in given
            }
            command(*args, wish=SystemWish(**wish), **given)

        options = {
            "switch": switch_option,
            "net": network_option,
            "bandwidth": bandwidth_option,
            "switches": switches_option,
            "cores": cores_option,
            "tree": tree_option,
            "pcap": pcap_option,
            "web": web_option,
        }
        for name, option in reversed(options.items()):
            if name not in without:
                option(collected)
        return collected

    return decorate
