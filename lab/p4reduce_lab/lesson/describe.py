# SPDX-License-Identifier: Apache-2.0
"""Frames, registers and P4 lines in words, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from p4reduce.wire import format as wire
from p4reduce.wire.lanes import unpack
from p4reduce.wire.rank_sets import describe_ranks
from p4reduce_switch.debug.debugger import Stop

from p4reduce_lab.lesson.traced import SourceLine
from p4reduce_lab.lesson.world import REGISTERS, FrameStep, HeldFrame, header

_LANES_SHOWN = 4
# As p4src/common/constants.p4 has the enum of outcomes.
_ENUMS, _OUTCOME = "constants.p4", re.compile(r"\d+,? // ")
_MEANING = {
    "version": "of the protocol",
    "kind": "what the frame is",
    "flags": "what else there is to say",
    "rank": "who sent it, or whom it is for",
    "job": "the incarnation: no two jobs ever have the same",
    "slot": "which aggregator of the job",
    "format": "what a lane is",
    "next_exponent": "of float32, for the next block",
    "round": "of the slot; its last bit picks the copy",
    "block": "which block of the tensor the lanes are",
    "next_block": "the next one that is not all zeros",
    "tag": "of the collective: ranks must agree on it",
    "contributors": "a bit for each rank that was heard",
}

_REGISTERS = {
    "jobs": "the job that the copy is used by; 0: it was never used",
    "rounds": "the round that the copy is about",
    "missing_ranks": "the ranks whose frames of this round have not come yet",
    "blocks": "the block that is summed in this round",
    "next_blocks": "the first block after it that some rank has numbers in",
    "formats": "what a number is",
    "payloads": "1: a frame of this round had numbers",
    "all_flags": "what else the frames of this round have said in their flags",
    "sums0": "the sum so far: its first numbers",
}


def line(held: HeldFrame) -> str:
    """Return a frame as one line."""
    found = header(held.data)
    way = f"rank {held.rank} -> switch" if held.up else f"switch -> rank {held.rank}"
    words = [
        f"#{held.number:<3} {way}  {_kind(found['kind']):<10}",
        f"slot {found['slot']} round {found['round']}",
        f"block {block(found['block'])} next {block(found['next_block'])}",
    ]
    if flags := flags_text(found["flags"], up=held.up):
        words.append(flags)
    if shown := lanes(held.data):
        words.append(f"lanes {shown}")
    if held.note:
        words.append(f"({held.note})")
    return "  ".join(words)


def _kind(number: int) -> str:
    """Return a frame kind's name; a forged frame may have a number without one."""
    return next((kind.name for kind in wire.FrameKind if kind == number), f"KIND {number}")


def details(held: HeldFrame) -> list[str]:
    """Return a frame's header, field by field, in words and bytes."""
    found = header(held.data)
    data = held.data[wire.AGG_OFFSET : wire.PAYLOAD_OFFSET]
    at = 0
    rows = [line(held), f"  {len(held.data)} bytes; the aggregation header begins at byte 42:"]
    for field in wire.HEADER_FIELDS:
        raw = data[at // 8 : (at + field.bits + 7) // 8].hex(" ")
        if field.bits < 8:
            raw = f"{found[field.name]:x}" + " (4 bits)"
        value = _value(field.name, found, up=held.up)
        rows.append(
            f"  {at // 8:>3}  {raw:<23}  {field.name:<13} {value:<14} {_MEANING[field.name]}"
        )
        at += field.bits
    payload = held.data[wire.PAYLOAD_OFFSET :]
    if payload:
        rows.append(f"  {at // 8:>3}  {payload[:8].hex(' ')} …  lanes: {lanes(held.data)}")
    return rows


def came_of(step: FrameStep) -> list[str]:
    """Return the effects of a frame."""
    rows = [line(step.frame)]
    if step.stop is not None:
        rows.append(f"  the switch holds it {stopped(step.stop, step.lines)}")
        rows += [f"  {each}" for each in changes(step.before, step.after)]
        return rows
    if step.outcome is None:
        rows.append(f"  rank {step.frame.rank}: {step.state}")
    else:
        rows.append(f"  the switch counts it as {step.outcome.label}")
        rows += [f"    {each}" for each in acting(step.lines)]
        rows += [f"  {each}" for each in changes(step.before, step.after)]
    rows += [f"  sent: {line(held)}" for held in step.sent]
    return rows


def stopped(stop: Stop, lines: Sequence[SourceLine]) -> str:
    """Return where and why a frame is held."""
    point = stop.point
    place = f"{point.kind} {point.name}"
    if point.kind == "line" and lines:
        place = f"before {lines[-1]}"
    elif point.line:
        place += f", {point.file.rpartition('/')[2]}:{point.line}"
    return f"at {place} ({stop.why})"


def values(stop: Stop, text: str) -> list[str]:
    """Return the values of a held frame whose names contain a text."""
    return [
        f"  {name} = {_short(value)}" for name, value in sorted(stop.values.items()) if text in name
    ]


def _short(value: int | bool) -> str:
    """A number in full where that can be read; of lanes the first bytes."""
    if isinstance(value, bool):
        return "valid" if value else "invalid"
    shown = f"{value:#x}"
    return (
        f"{value} ({shown})" if len(shown) <= 18 else f"{shown[:18]}… ({len(shown) * 4 - 8} bits)"
    )


def acting(lines: Iterable[SourceLine]) -> list[SourceLine]:
    """Return the executed lines that write a shown register, and their outcome.

    p4c names a constant by the line that defines it. So the outcome is its line in the enum, with
    the comment there; the last one that was assigned counts.
    """
    found, outcome = [], []
    for each in dict.fromkeys(lines):
        name, written, _ = each.text.partition(".write(")
        if written and name in REGISTERS:
            found.append(each)
        elif each.file == _ENUMS and _OUTCOME.match(each.text):
            outcome = [each]
    return found + outcome


def changes(before: list[dict[str, int]], after: list[dict[str, int]]) -> list[str]:
    """Return what the registers of both copies of a slot hold now, and held before."""
    rows = []
    for copy, (was, now) in enumerate(zip(before, after, strict=True)):
        parts = []
        for name in REGISTERS:
            old, new = register(name, was), register(name, now)
            parts.append(f"{name} {new}" if old == new else f"{name} {old} => {new}")
        mark = "*" if was != now else " "
        rows.append(f"copy {copy}{mark} {', '.join(parts)}")
    return rows


def legend() -> list[str]:
    """Return a slot's registers with their purpose."""
    rows = [f"{name:<12} {meaning}" for name, meaning in _REGISTERS.items()]
    return [*rows, "A star marks the copy that the frame has changed; before => after."]


def register(name: str, cells: Mapping[str, int]) -> str:
    """Return a register's value for a copy of a slot."""
    value = cells[name]
    if name == "missing_ranks":
        return ranks(value)
    if name in ("blocks", "next_blocks"):
        return block(value)
    if name == "formats":
        return wire.Format(value).name
    if name == "all_flags":
        return flags_text(value, up=False) or "-"
    if name == "sums0":
        return _lanes(value.to_bytes(256, "big"), wire.Format(cells["formats"]))
    return str(value)


def ranks(bits: int) -> str:
    """Return a set of ranks as text."""
    found = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    return describe_ranks(found) if found else "nobody"


def block(number: int) -> str:
    """Return a block's number as text."""
    return "none" if number == wire.NO_BLOCK else str(number)


def flags_text(flags: int, *, up: bool) -> str:
    """Return the flags' names. Two of them mean something else on the way up."""
    names = []
    for bit in range(8):
        flag = flags & 1 << bit
        if flag:
            upward = {0x40: "TELL_ALL", 0x80: "FOR_ONE"}
            names.append(upward[flag] if up and flag in upward else wire.Flag(flag).name or "?")
    return " ".join(names)


def lanes(data: bytes) -> str:
    """The first lanes of a frame; empty if it has none."""
    payload = data[wire.PAYLOAD_OFFSET :]
    flags = header(data)["flags"]
    if not payload or not flags & wire.Flag.PAYLOAD:
        return ""
    return _lanes(payload, wire.Format(header(data)["format"]))


def _lanes(data: bytes, lane_format: wire.Format) -> str:
    numbers = unpack(np.frombuffer(data, np.uint8), lane_format)[:_LANES_SHOWN]
    return " ".join(str(number) for number in numbers.tolist()) + " …"


def _value(name: str, found: dict[str, int], *, up: bool) -> str:
    value = found[name]
    if name == "kind":
        return wire.FrameKind(value).name
    if name == "flags":
        return flags_text(value, up=up) or "-"
    if name == "format":
        return wire.Format(value).name
    if name in ("block", "next_block"):
        return block(value)
    if name == "contributors":
        return ranks(value)
    return str(value)
