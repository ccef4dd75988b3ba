# SPDX-License-Identifier: Apache-2.0
"""Finds what a user names: a full name, a short one that is unambiguous, a line with code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_MOST_NAMES = 40  # of one error
_HIDDEN = "tbl_"  # how p4c names tables that it makes of statements; "$" is the loader's


def matching(name: str, known: Collection[str], *, fields: bool = False) -> list[str]:
    """Return the full names that a name may stand for, in order.

    A short name is the end of a full one: "last" of "MyIngress.last". A field may have the name of
    its struct before it, which p4c does not keep. So "hdr.ipv4.ttl" is "ipv4.ttl", and "meta.seen"
    is "scalars.meta_t.seen".
    """
    headers = {one.partition(".")[0] for one in known}
    while name:
        if name in known:
            return [name]
        found = sorted(one for one in known if one.endswith(f".{name}"))
        first, _, name = name.partition(".")
        if found or not fields or first in headers:
            return found
    return []


def full_name(kind: str, name: str, known: Collection[str]) -> str:
    """Return the full name of a table, action, register and so on; see `matching`.

    Raises:
        ValueError: there is none, or more than one; lists the names.
    """
    found = matching(name, known, fields=kind == "field")
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"'{name}' could be {' or '.join(found)}: give the full name")
    raise ValueError(f"there is no {kind} '{name}'; there are {_listed(known)}")


def check_line(
    file: str, line: int, lines: Mapping[str, frozenset[int]], tables: Iterable[str]
) -> None:
    """Check that a program can stop at a line.

    Args:
        file: the end of a file's name; empty: any file.
        line: of that file.
        lines: that have code, by file.
        tables: the program's, for the hint.

    Raises:
        ValueError: it cannot; names the nearest lines, or the files.
    """
    files = [one for one in lines if one.endswith(file)]
    if not files:
        raise ValueError(
            f"the program has no code from a file '{file}'; its files are {_listed(lines)}"
        )
    if any(line in lines[one] for one in files):
        return
    places = [(number, one) for one in files for number in lines[one]]
    near = [max((p for p in places if p[0] < line), default=None)]
    near.append(min((p for p in places if p[0] > line), default=None))
    named = " and ".join(f"{place[1]}:{place[0]}" for place in near if place is not None)
    own = sorted(name for name in tables if not name.startswith(_HIDDEN))
    hint = f". Where a table is applied: break table {' or '.join(own[:3])}" if own else ""
    at = f"{file}:{line}" if file else f"line {line}"
    raise ValueError(f"there is no code at {at}; the nearest is at {named}{hint}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(name for name in names if not name.startswith(("$", _HIDDEN)))
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    return (", ".join(ordered[:_MOST_NAMES]) or "none") + more
