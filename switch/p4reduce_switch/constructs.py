# SPDX-License-Identifier: Apache-2.0
"""The constructs of p4c's JSON for v1model, and which of them the switch runs."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_common.rows import rows_of


@dataclass(frozen=True)
class Construct:
    """Constructs that behave alike.

    Attributes:
        section: the part of a program they belong to, such as "Parser".
        names: in the JSON.
        runs: whether both engines run them. A program with any other is refused when it is loaded.
        program: one of tests/switch/programs whose JSON has them; "-" if p4c never writes them.
        note: what else to know; may be empty.
    """

    section: str
    names: tuple[str, ...]
    runs: bool
    program: str
    note: str


def constructs() -> tuple[Construct, ...]:
    """Return every construct that p4c 1.2.5 can write, or BMv2's simple_switch reads."""
    return tuple(
        Construct(
            row["section"],
            tuple(row["constructs"].split(", ")),
            row["runs"] == "yes",
            row["program"],
            row["note"],
        )
        for row in rows_of("p4reduce_switch", "constructs.tsv")
    )


def listing() -> str:
    """Return the list that `p4reduce-switch --constructs` prints."""
    lines: list[str] = []
    section = ""
    for one in constructs():
        if one.section != section:
            lines += ["", one.section] if lines else [one.section]
            section = one.section
        note = f"  ({one.note.replace('`', '')})" if one.note else ""
        lines.append(f"  {'runs   ' if one.runs else 'refused'} {', '.join(one.names)}{note}")
    return "\n".join(lines)
