# SPDX-License-Identifier: Apache-2.0
"""A tree of switches, one controller that owns them, and ranks below the leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.limits import MAX_RANKS
from p4reduce_lab.networks.links import set_rate
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.system import CONTROLLER_VARIABLE, INTERFACE_VARIABLE, System
from p4reduce_lab.topology_file import link_table, switch_table

MAX_CHILDREN = 64  # of a switch: ranks, or switches below it
_UPLINK = 500  # a port above those of all children


@dataclass(frozen=True)
class TreeShape:
    """The number of children per switch on each level, from the root down; the last are ranks."""

    children: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> TreeShape:
        """Parse "2x4": two leaves of four ranks; "2x2x4" has a level of switches between.

        Raises ArgumentsError.
        """
        if not re.fullmatch(r"[0-9]{1,4}(x[0-9]{1,4}){1,2}", text):
            raise ArgumentsError(
                f"TREE={text} is not a tree like 2x4, two leaves of four ranks each, or 2x2x4"
            )
        children = tuple(int(number) for number in text.split("x"))
        for number in children:
            if not 1 <= number <= MAX_CHILDREN:
                raise ArgumentsError(
                    f"TREE={text}: a switch has 1 to {MAX_CHILDREN} children, not {number}"
                )
        if math.prod(children) > MAX_RANKS:
            raise ArgumentsError(
                f"TREE={text} has {math.prod(children)} ranks; here it is {MAX_RANKS} at most"
            )
        return cls(children)

    @property
    def ranks(self) -> int:
        """The number of workers."""
        return math.prod(self.children)

    @property
    def text(self) -> str:
        """The shape for people."""
        leaves, ranks = math.prod(self.children[:-1]), self.children[-1]
        below = "leaf" if leaves == 1 else "leaves"
        spines = self.children[0] if len(self.children) == 3 else 0
        between = f", {spines} spine{'s' * (spines > 1)}" if spines else ""
        ranks_of_each = f"{ranks} rank{'s' * (ranks > 1)}{' each' * (leaves > 1)}"
        return f"a tree: a root{between}, {leaves} {below} with {ranks_of_each}"


@dataclass(frozen=True)
class _Node:
    """A switch of the tree, with the ranks that are its own, at ports 1, 2, … in this order."""

    name: str
    parent: str | None
    parent_port: int
    ranks: range


def _nodes(shape: TreeShape) -> list[_Node]:
    """Return the switches, each after its parent."""
    nodes = [_Node("root", None, 0, range(0))]
    above = ["root"]
    *above_leaves, of_leaf = shape.children
    kinds = ("spine", "leaf")[-len(above_leaves) :]
    for kind, fanout in zip(kinds, above_leaves, strict=True):
        is_leaf = kind == "leaf"
        names: list[str] = []
        for parent in above:
            for port in range(1, fanout + 1):
                name, first = f"{kind}-{len(names) + 1}", len(names) * of_leaf
                own = range(first, first + of_leaf) if is_leaf else range(0)
                nodes.append(_Node(name, parent, port, own))
                names.append(name)
        above = names
    return nodes


class TreeSystem(System):
    """A system as any, whose workers are spread over the leaves of a tree.

    Args:
        choice, directory, logs: see `System`.
        shape: of the tree.
        uplinks: Mbit/s of whole frames, of each link between switches and in each direction; the
            links are veth pairs then. None: as fast as they go.
    """

    def __init__(
        self,
        choice: LabChoice,
        directory: Path,
        logs: Path,
        shape: TreeShape,
        uplinks: float | None = None,
    ) -> None:
        super().__init__(choice, directory, logs, shape.ranks)
        if choice.network == "udp":
            raise LabError("TREE requires NET=local or NET=mininet: switches have no UDP links")
        self.topology, self.switch_name = "tree", "the root switch"
        self._uplinks = uplinks
        self._nodes = _nodes(shape)
        self._undo = ExitStack()
        self._interface = ""

    def start(self) -> None:
        """Start all, as `System` does."""
        ports, links = self._make_ports(), self._make_links()
        for node in reversed(self._nodes):
            own = {rank % len(node.ranks) + 1: ports[rank] for rank in node.ranks}
            own |= {child.parent_port: links[child.name][0] for child in self._children(node)}
            if node.parent is not None:
                own[_UPLINK] = links[node.name][1]
            self._start_switch(node.name, own)
        self.launchers = dict(reversed(self.launchers.items()))  # the root first
        self._write_net_file(self._tables())
        self.start_controller()

    def _make_ports(self) -> Mapping[int, str]:
        """Make the ports that the ranks are at; returns the switch's end of each rank's."""
        ranks = range(self._ports)
        if self._choice.network == "mininet":
            self._make_network(1)
            assert self._own_network is not None
            return {rank: self._own_network.ports[rank + 1] for rank in ranks}
        if self._choice.switch == "embedded":
            self._interface = f"unix:{self._directory}/port{{port}}.sock"
            return {rank: self._interface.format(port=rank + 1) for rank in ranks}
        veths = self._undo.enter_context(VethPorts(self._ports))
        self._interface = veths.interface
        return {rank: veths.switch_side[rank + 1] for rank in ranks}

    def _make_links(self) -> dict[str, tuple[str, str]]:
        """Make the links, by the lower switch's name: the upper and the lower end of each."""
        names = [node.name for node in self._nodes if node.parent is not None]
        by_socket = self._choice.network != "mininet" and self._choice.switch == "embedded"
        if by_socket and self._uplinks is None:
            at = f"{self._directory}/link-"
            return {name: (f"unix:{at}{name}", f"unix-to:{at}{name}") for name in names}
        veths = self._undo.enter_context(VethPorts(len(names)))
        if self._uplinks is not None:
            ends = (*veths.switch_side.values(), *veths.worker_side.values())
            set_rate([([], end) for end in ends], self._uplinks)
        return {
            name: (veths.switch_side[number], veths.worker_side[number])
            for number, name in enumerate(names, start=1)
        }

    def _children(self, node: _Node) -> list[_Node]:
        return [child for child in self._nodes if child.parent == node.name]

    def _tables(self) -> list[str]:
        """What `serve --topology` reads."""
        tables = []
        for node in self._nodes:
            stations: dict[int, str] = {}
            if self.network is not None:
                macs = self.network.stations
                stations = {rank % len(node.ranks) + 1: macs[rank + 1] for rank in node.ranks}
            address = self.launchers[node.name].grpc_address
            tables.append(switch_table(node.name, address, len(node.ranks), stations))
        tables += [
            link_table(node.parent, node.parent_port, node.name, _UPLINK)
            for node in self._nodes
            if node.parent is not None
        ]
        return tables

    def variables(self) -> dict[str, str]:
        """Return the variables, as `System` does."""
        if self.network is not None:
            return super().variables()
        return {CONTROLLER_VARIABLE: self.controller_address, INTERFACE_VARIABLE: self._interface}

    def __exit__(self, *error: object) -> None:
        with self._undo:
            super().__exit__(*error)
