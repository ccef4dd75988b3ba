# SPDX-License-Identifier: Apache-2.0
"""Counters and registers: the state that outlives a packet.

The generated code uses the lists `packets`, `bytes` and `cells` directly. They are never replaced
during a pipeline's life. Every change from outside assigns one list item, which the interpreter
lock makes atomic. So the packet path needs no lock.
"""

from __future__ import annotations


class Counter:
    """An indirect counter array, or the name of a table's direct counter.

    It counts packets and bytes, as in BMv2, whatever the program asked for. Bytes are those of the
    incoming frame with its Ethernet header.

    A direct counter has no cells: its counts are in the table's entries (`Entry.packets`,
    `Entry.bytes`), and `size` is the table's.
    """

    __slots__ = ("bytes", "is_direct", "name", "packets", "size", "table")

    def __init__(self, name: str, size: int, *, table: str | None = None) -> None:
        self.name = name
        self.size = size
        self.is_direct = table is not None
        self.table = table
        cells = 0 if self.is_direct else size
        self.packets = [0] * cells
        self.bytes = [0] * cells

    def read(self, index: int) -> tuple[int, int]:
        """Return the packets and bytes of cell `index`. Raises IndexError."""
        self._check(index)
        return self.packets[index], self.bytes[index]

    def write(self, index: int, packets: int, bytes: int) -> None:
        """Set cell `index`. Raises IndexError."""
        self._check(index)
        self.packets[index] = packets
        self.bytes[index] = bytes

    def _check(self, index: int) -> None:
        if self.is_direct:
            raise IndexError(
                f"counter {self.name} is direct: its counts are in the entries of {self.table}"
            )
        if not 0 <= index < self.size:
            raise IndexError(f"counter {self.name} has cells 0..{self.size - 1}, not {index}")


class Register:
    """A register array of `size` unsigned cells of `width` bits, all zero at the start."""

    __slots__ = ("cells", "name", "size", "width")

    def __init__(self, name: str, width: int, size: int) -> None:
        self.name = name
        self.width = width
        self.size = size
        self.cells = [0] * size
