# SPDX-License-Identifier: Apache-2.0
"""The cells of a comparison: tensors, links and ways to reduce, and lower bounds of the time.

A *cell* is a number of ranks, a rate and a size; a *case* is one way to reduce a tensor of that
size. All cases of a cell are measured in turns on the same links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_BYTES, PAYLOAD_FRAME_BYTES, Format
from p4reduce_native.datagrams import FLOAT32_SPARED_BYTES, FRAMING_BYTES

P4REDUCE, GLOO, MPI = "p4reduce", "gloo", "mpi"
CONTENDERS = (P4REDUCE, GLOO, MPI)
PRECISIONS = ("int32", "int16", "int8", "int4")  # p4reduce's lanes for a float32 tensor
OVERLAPS = ("aligned", "independent")

ETHERNET_MTU = 1514  # bytes of a whole frame
TCP_PAYLOAD = 1448  # of it, with timestamps
ETHERNET, UDP = "ethernet", "udp"
LINKS = (ETHERNET, UDP)
PORT_BYTES = {ETHERNET: 0, UDP: FRAMING_BYTES}
"""What a port adds to each frame on the link."""


@dataclass(frozen=True)
class CompareCase:
    """One way to reduce a float32 tensor.

    Attributes:
        contender: "p4reduce", "gloo" or "mpi".
        wire: what travels. p4reduce: lanes, one of `PRECISIONS`; gloo: "float32", or
            "float16" as torch's fp16 hook has it; mpi: "float32".
        density: share of the tensor's blocks (1,024 bytes) that a rank has anything in.
        overlap: whether all ranks have the same blocks ("aligned") or each its own.
    """

    contender: str
    wire: str
    density: float = 1.0
    overlap: str = "aligned"

    @property
    def name(self) -> str:
        """The name for people: "p4reduce int8", "p4reduce 1 % aligned"."""
        parts = [self.contender]
        if self.wire not in ("int32", "float32"):
            parts.append(self.wire)
        if self.density < 1:
            parts.append(f"{self.density:.3g} {self.overlap}")
        return " ".join(parts)

    def bound(self, ranks: int, size: int, rate: float, links: str = ETHERNET) -> float:
        """Return the least seconds that links of this many Mbit/s allow, each with its own framing.

        p4reduce: every rank's link carries each block of the union once each way, S/B. TCP: the
        lower bound of any all-reduce among hosts, 2 (n - 1) / n S/B (Patarasuk and Yuan, JPDC
        2009).
        """
        bytes_per_second = rate * 1e6 / 8
        if self.contender == P4REDUCE:
            blocks = -(-size // 4 // Format[self.wire.upper()].lanes)
            union = union_density(self.density, self.overlap, ranks)
            more = PORT_BYTES[links]
            spared = FLOAT32_SPARED_BYTES if links == UDP and self.wire == "int32" else 0
            frames = blocks * union * (PAYLOAD_FRAME_BYTES - spared + more)
            return (frames + EMPTY_FRAME_BYTES + more) / bytes_per_second
        width = {"float32": 1.0, "float16": 0.5}[self.wire]
        share = 2 * (ranks - 1) / ranks
        return share * size * width * ETHERNET_MTU / TCP_PAYLOAD / bytes_per_second


def union_density(density: float, overlap: str, ranks: int) -> float:
    """Return the expected share of blocks that any rank has."""
    return 1 - (1 - density) ** ranks if overlap == "independent" else density


@dataclass(frozen=True)
class CompareCell:
    """A combination that is measured in turns on the same links.

    Attributes:
        ranks: how many.
        rate: of each link in each direction, in Mbit/s; None: not limited.
        size: bytes of the float32 tensor.
        cases: ways to reduce it.
        turns: how often each is measured.
        links: "ethernet": interfaces of the switch, offloads off; without a rate, no links at all,
            all on one machine. "udp": UDP ports of a switch behind a router, offloads on.
    """

    ranks: int
    rate: float | None
    size: int
    cases: tuple[CompareCase, ...]
    turns: int
    links: str = ETHERNET

    @property
    def linked(self) -> bool:
        """Whether each rank has a namespace of its own."""
        return self.rate is not None or self.links == UDP

    def bound(self, case: CompareCase, otherwise: float = 0.0) -> float:
        """Return a case's bound. `otherwise` stands for a missing rate, in Mbit/s."""
        return case.bound(self.ranks, self.size, self.rate or otherwise, self.links)


def dense_cases(contenders: Sequence[str]) -> list[CompareCase]:
    """Return the whole tensor, by each contender."""
    return [CompareCase(one, "int32" if one == P4REDUCE else "float32") for one in contenders]


def narrow_cases(contenders: Sequence[str], precisions: Sequence[str]) -> list[CompareCase]:
    """Return fewer bits per number: p4reduce's lanes, and torch's fp16 hook."""
    cases = [CompareCase(P4REDUCE, precision) for precision in precisions if precision != "int32"]
    return [*cases, CompareCase(GLOO, "float16")] if GLOO in contenders and cases else cases


def sparse_cases(
    densities: Sequence[float], overlaps: Sequence[str] = OVERLAPS
) -> list[CompareCase]:
    """Return tensors with blocks of zeros, which only p4reduce skips."""
    return [
        CompareCase(P4REDUCE, "int32", density, overlap)
        for density in densities
        if density < 1
        for overlap in overlaps
    ]


def check_block(size: int) -> None:
    """Refuse sizes that are not whole blocks. Raises ValueError."""
    if size < PAYLOAD_BYTES or size % PAYLOAD_BYTES:
        raise ValueError(f"a size of {size} bytes; it must be a multiple of {PAYLOAD_BYTES}")


def cells_of(
    *,
    ranks: Sequence[int],
    rates: Sequence[float],
    sizes: Sequence[int],
    precisions: Sequence[str],
    densities: Sequence[float],
    contenders: Sequence[str],
    turns: int,
    links: str = ETHERNET,
) -> list[CompareCell]:
    """Return the cells of all combinations; a rate of 0: not limited."""
    cases = dense_cases(contenders)
    if P4REDUCE in contenders:
        cases += narrow_cases(contenders, precisions) + sparse_cases(densities)
    return [
        CompareCell(count, rate or None, size, tuple(cases), turns, links)
        for count in ranks
        for rate in rates
        for size in sizes
    ]


_KIB, _MIB = 1 << 10, 1 << 20
_STANDARD_RATES = ((10.0, 2 * _MIB), (25.0, 2 * _MIB), (100.0, 8 * _MIB), (1000.0, 16 * _MIB))
_STANDARD_SIZES = (4 * _KIB, 64 * _KIB, 1 * _MIB, 64 * _MIB)


def standard(contenders: Sequence[str]) -> Iterator[CompareCell]:
    """The standard set of cells: about ten minutes on two cores.

    A tensor of half a second to two seconds at each rate, for 8, 4 and 2 ranks. Lanes and densities
    at 10 Mbit/s, where two cores keep up with eight ranks. All sizes at 100 Mbit/s with four ranks,
    and 4 and 64 MB without links. What matters most comes first.
    """
    dense = dense_cases(contenders)
    extra = []
    if P4REDUCE in contenders:
        extra = narrow_cases(contenders, PRECISIONS[:3]) + sparse_cases((0.1, 0.01))
    for ranks in (8, 4, 2):
        for rate, size in _STANDARD_RATES:
            more = extra if rate == 10 and ranks > 2 else []
            yield CompareCell(ranks, rate, size, (*dense, *more), 4)
        if ranks == 4:
            for size in _STANDARD_SIZES:
                yield CompareCell(ranks, 100.0, size, tuple(dense), 2 if size > 8 * _MIB else 7)
            for size in (4 * _MIB, 64 * _MIB):
                yield CompareCell(ranks, None, size, tuple(dense), 5)


_UDP_SIZES = (
    (1000.0, (64 * _KIB, 1 * _MIB, 16 * _MIB)),
    (100.0, (64 * _KIB, 1 * _MIB, 8 * _MIB)),
    (10_000.0, (64 * _KIB, 1 * _MIB, 16 * _MIB, 64 * _MIB)),
    (None, (64 * _KIB, 1 * _MIB, 16 * _MIB)),
)


def standard_udp(contenders: Sequence[str]) -> Iterator[CompareCell]:
    """The standard set of cells over UDP.

    Time against size at each rate with four ranks, float32 and int8; one tensor with eight ranks.
    """
    cases = dense_cases(contenders)
    if P4REDUCE in contenders:
        cases += narrow_cases(contenders, ("int8",))
    for rate, sizes in _UDP_SIZES:
        for size in sizes:
            yield CompareCell(4, rate, size, tuple(cases), 5, UDP)
    yield CompareCell(8, 1000.0, 16 * _MIB, tuple(cases), 5, UDP)


STANDARD_SECONDS = 600.0
"""What the standard set may take; what would end later is left out."""


def expected_seconds(cells: Sequence[CompareCell], *, started: bool = False) -> float:
    """Return about how many seconds cells take, from earlier runs.

    Args:
        cells: all.
        started: their processes are there already.
    """
    places = {(cell.ranks, cell.linked) for cell in cells}
    total = 0.0 if started else float(sum(15 + 4 * ranks for ranks, _ in places))
    for cell in cells:
        for case in cell.cases:
            # On one machine memory is the link, and a tensor of this size is made and checked.
            each = 1.3 * cell.bound(case, 2000.0)
            made = 0.1 + cell.ranks * cell.size / 400e6
            total += (cell.turns + 0.3) * (each + made)
    return total
