# SPDX-License-Identifier: Apache-2.0
"""The switches of a network, the ports of its ranks, and the file that tells the controller."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from types import MappingProxyType

from p4reduce_lab.errors import ArgumentsError

MAX_CHILDREN = 64  # of a switch: ranks, or switches below it
UPLINK = 500  # a port above those of all children
_NONE: Mapping[int, str] = MappingProxyType({})


class PortRow(dict[int, str]):
    """Ports of consecutive ranks, numbered from 1, rank 0's: where the switch has each.

    Args:
        ports: an interface, unix:PATH or udp:HOST:PORT, by its number.
        interface: what workers name their port, as P4REDUCE_INTERFACE does.
        stations: the MAC address of the host at each port; empty: the switch learns them.
        ip: the switch's own address towards these hosts; "": none.
    """

    def __init__(
        self,
        ports: Mapping[int, str],
        interface: str,
        stations: Mapping[int, str] = _NONE,
        ip: str = "",
    ) -> None:
        super().__init__(ports)
        self.interface = interface
        self.stations = stations
        self.ip = ip


@dataclass(frozen=True)
class Node:
    """A switch, with the ranks that are at its ports 1, 2, … in this order."""

    name: str
    ranks: range
    parent: str = ""
    parent_port: int = 0


@dataclass(frozen=True)
class LabTopology:
    """One switch, several side by side with all ranks each, or a tree with ranks at its leaves.

    Attributes:
        nodes: the switches, each after its parent.
    """

    nodes: tuple[Node, ...]

    @classmethod
    def side_by_side(cls, ranks: int, switches: int = 1) -> LabTopology:
        """Return that many switches, called a, b and so on; one is called "switch"."""
        names = ascii_lowercase[:switches] if switches > 1 else ("switch",)
        return cls(tuple(Node(name, range(ranks)) for name in names))

    @classmethod
    def tree(cls, *children: int, ranks: int | None = None) -> LabTopology:
        """Return a tree.

        Args:
            *children: of a switch on each level, from the root down; the last are ranks.
            ranks: of all leaves; None: as many as they have room for. The last leaf may have
                fewer than the others.
        """
        ranks = math.prod(children) if ranks is None else ranks
        nodes, above = [Node("root", range(0))], ["root"]
        *fanouts, of_leaf = children
        for kind, fanout in zip(("spine", "leaf")[-len(fanouts) :], fanouts, strict=True):
            names: list[str] = []
            for parent in above:
                for port in range(1, fanout + 1):
                    first = len(names) * of_leaf if kind == "leaf" else ranks
                    if kind == "leaf" and first >= ranks:
                        break
                    names.append(f"{kind}-{len(names) + 1}")
                    own = range(first, min(first + of_leaf, ranks))
                    nodes.append(Node(names[-1], own, parent, port))
            above = names
        return cls(tuple(nodes))

    @classmethod
    def parse(cls, text: str, ranks: int | None = None) -> LabTopology:
        """Parse "2x4": two leaves of four ranks; "2x2x4" has a level of switches between.

        Args:
            text: of a tree.
            ranks: as for `tree`.

        Raises:
            ArgumentsError: it is none, or has room for another number of ranks.
        """
        if not re.fullmatch(r"[0-9]{1,4}(x[0-9]{1,4}){1,2}", text):
            raise ArgumentsError(
                f"tree {text!r} is not a shape like 2x4, two leaves of four ranks each, or 2x2x4"
            )
        children = tuple(int(number) for number in text.split("x"))
        for number in children:
            if not 1 <= number <= MAX_CHILDREN:
                raise ArgumentsError(
                    f"tree {text}: a switch has 1 to {MAX_CHILDREN} children, not {number}"
                )
        room = math.prod(children)
        if ranks is not None and not room - children[-1] < ranks <= room:
            raise ArgumentsError(f"tree {text} has {room} ranks, and {ranks} were asked for")
        return cls.tree(*children, ranks=ranks)

    @property
    def is_tree(self) -> bool:
        """Whether some switches are above others."""
        return bool(self.nodes[-1].parent)

    @property
    def ranks(self) -> int:
        """The number of workers."""
        return self.nodes[-1].ranks.stop

    @property
    def rows(self) -> int:
        """How many ports each rank has: a tree has one `PortRow`, over all leaves."""
        return 1 if self.is_tree else len(self.nodes)

    @property
    def kind(self) -> str:
        """ "star", "side-by-side" or "tree"."""
        return "tree" if self.is_tree else "side-by-side" if self.rows > 1 else "star"

    @property
    def text(self) -> str:
        """The switches for people."""
        if not self.is_tree:
            return "one switch" if self.rows == 1 else f"{self.rows} switches side by side"
        leaves = [len(node.ranks) for node in self.nodes if node.ranks]
        below = "leaf" if len(leaves) == 1 else "leaves"
        spines = len(self.nodes) - 1 - len(leaves)
        between = f", {spines} spine{'s' * (spines > 1)}" if spines else ""
        most = "up to " * (leaves[-1] < leaves[0]) + str(leaves[0])
        ranks_of_each = f"{most} rank{'s' * (leaves[0] > 1)}{' each' * (len(leaves) > 1)}"
        return f"a tree: a root{between}, {len(leaves)} {below} with {ranks_of_each}"

    @property
    def text_if_several(self) -> str:
        """The same behind a comma; empty for one switch."""
        return f", {self.text}" if len(self.nodes) > 1 else ""

    def row_of(self, node: Node, rows: Sequence[PortRow]) -> PortRow:
        """Return the ports that a switch's ranks are at, of the rows of all ranks."""
        if not self.is_tree:
            return rows[self.nodes.index(node)]
        row = rows[0]

        def own(each: Mapping[int, str]) -> Mapping[int, str]:
            return {number: each[rank + 1] for number, rank in enumerate(node.ranks, 1)}

        return PortRow(own(row), row.interface, own(row.stations) if row.stations else _NONE)

    def file_text(self, addresses: Mapping[str, str], rows: Sequence[PortRow]) -> str:
        """Return what `p4reduce-controller serve --topology` reads.

        Args:
            addresses: of each switch's P4Runtime server.
            rows: the ports of all ranks.
        """
        tables = []
        for node in self.nodes:
            row = self.row_of(node, rows)
            lines = [f"[switches.{node.name}]", f'p4runtime = "{addresses[node.name]}"']
            if row:
                lines.append(f'ports = "1-{len(row)}"')
            if row.ip:
                lines.append(f'ip = "{row.ip}"')
            if row.stations:
                at = (f'"{mac}" = {port}' for port, mac in row.stations.items())
                lines.append(f"stations = {{ {', '.join(at)} }}")
            tables.append("\n".join(lines))
        tables += [
            f'[[links]]\nparent = "{node.parent}:{node.parent_port}"\n'
            f'child = "{node.name}:{UPLINK}"'
            for node in self.nodes
            if node.parent
        ]
        return "\n\n".join(tables) + "\n"
