# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab bench-diff``: what got slower, or faster, beyond noise between two result files.

A result file is what `make bench` or `p4reduce-lab compare` writes: JSON with rows of figures.
Rows are the same if all of their texts are, and the numbers that say what was measured. Whether
more of a figure is better follows from its name (`DIRECTIONS`). A figure's noise is its spread
where the file has one (`fastest_…` and `slowest_…`, `least_…` and `most_…`), else a share of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from p4reduce_lab.errors import ArgumentsError

NOISE = 0.2
"""Share by which a figure without a spread may differ from run to run, on a virtual machine."""

LEAST = 0.03
"""Share below which a difference is not worth a word, whatever the spread."""

DIRECTIONS = (
    (re.compile(r"(^|_)(seconds|ms|us|ns)$"), -1),
    (re.compile(r"per_second$|_mbit_s$|goodput|speedup|^times_(gloo|ring)$|share_of_bound"), 1),
)
"""What a figure's name has in it, and whether more is better (1) or worse (-1)."""

_PLACES = {"bytes", "frame_bytes", "megabytes", "ranks", "workers", "rate_mbit", "density", "slots"}
_SPREADS = (("fastest_", "slowest_"), ("least_", "most_"))
_EDGES = (*(edge for edges in _SPREADS for edge in edges), "bound_", "p90_", "model_", "ring_")

Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Figure:
    """A measured number with its spread, the least and the most; None if there is none."""

    value: float
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Change:
    """A figure in both files.

    Attributes:
        where: the row, for people.
        name: of the figure.
        before, after: its values.
        worse: by what share it got worse; negative: better.
        by_spread: whether the noise is the spread that was measured.
        beyond: whether that is beyond noise.
    """

    where: str
    name: str
    before: Figure
    after: Figure
    worse: float
    by_spread: bool
    beyond: bool


@dataclass(frozen=True)
class MeasurementDifference:
    """What differs between two files.

    Attributes:
        changes: all figures that are in both, the worst first.
        only_before, only_after: rows that are in one.
        warnings: why the two may not be comparable.
    """

    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def slower(self) -> list[Change]:
        """The figures that got worse beyond noise."""
        return [one for one in self.changes if one.beyond and one.worse > 0]

    @property
    def faster(self) -> list[Change]:
        """The figures that got better beyond noise, the best first."""
        return [one for one in reversed(self.changes) if one.beyond and one.worse < 0]


def read_results(path: Path) -> dict[str, Any]:
    """Read a result file. Raises ArgumentsError."""
    try:
        whole = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArgumentsError(f"{path} is not a result file: {error}") from error
    if isinstance(whole, dict) and ("benches" in whole or "results" in whole):
        return whole
    raise ArgumentsError(f"{path} is not a result of `make bench` or `p4reduce-lab compare`")


def find_results(name: str, directories: Sequence[Path]) -> Path:
    """Return a result file by path, or by the commit it was measured at.

    Args:
        name: a path; or the beginning of a commit's name, at least four letters, for which one of
            the directories has results-COMMIT.json.
        directories: where such files are kept.

    Raises:
        ArgumentsError: there is none, or several.
    """
    if Path(name).is_file():
        return Path(name)
    found: list[Path] = []
    if re.fullmatch(r"[0-9a-f]{4,40}\+?", name):
        for directory in directories:
            found += [
                path
                for path in sorted(directory.glob("*-*.json"))
                if (commit := path.stem.rpartition("-")[2])
                and (commit.startswith(name) or name.startswith(commit))
            ]
    if len(found) == 1:
        return found[0]
    places = ", ".join(map(str, directories))
    if found:
        names = ", ".join(path.name for path in found)
        raise ArgumentsError(f"several results are of commit {name}: {names}; name the file")
    raise ArgumentsError(
        f"there is no file {name!r}, and no results of a commit of that name in {places}: "
        "`make bench` leaves them there"
    )


def difference(
    before: Mapping[str, Any], after: Mapping[str, Any], noise: float = NOISE
) -> MeasurementDifference:
    """Compare two result files' contents.

    Args:
        before, after: as for `read_results`.
        noise: what figures without a spread may differ by, as a share.
    """
    rows = [dict(_rows(whole)) for whole in (before, after)]
    changes = [
        change
        for key, old in rows[0].items()
        if key in rows[1]
        for change in _changes(_text(key), old, rows[1][key], noise)
    ]
    changes.sort(key=lambda one: -one.worse)
    only = [tuple(_text(key) for key in rows[i] if key not in rows[1 - i]) for i in range(2)]
    return MeasurementDifference(tuple(changes), only[0], only[1], tuple(_warnings(before, after)))


def _rows(whole: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """All rows, by what identifies them; a second one of the same name is numbered."""
    seen: dict[Key, int] = {}
    for bench in whole.get("benches", [whole]):
        script = " ".join([bench.get("script", "compare"), *bench.get("arguments", [])])
        for row in bench.get("results", []):
            key: Key = (
                ("", script),
                *(
                    (name, value)
                    for name, value in sorted(row.items())
                    if name in _PLACES or (isinstance(value, str) and name != "limit")
                ),
            )
            seen[key] = seen.get(key, 0) + 1
            yield (key if seen[key] == 1 else (*key, ("row", seen[key]))), row


def _text(key: Key) -> str:
    return ", ".join(
        str(value) if isinstance(value, str) else f"{name} {value:g}"
        for name, value in key
        if value != ""
    )


def _changes(
    where: str, old: Mapping[str, Any], new: Mapping[str, Any], noise: float
) -> Iterator[Change]:
    for name in old:
        better = direction(name)
        if better is None or not all(_is_number(row.get(name)) for row in (old, new)):
            continue
        before, after = _figure(name, old), _figure(name, new)
        if before.value <= 0 or after.value <= 0:
            continue
        ratio = before.value / after.value if better > 0 else after.value / before.value
        by_spread = before.spread is not None and after.spread is not None
        beyond = abs(ratio - 1) > (LEAST if by_spread else noise)
        if before.spread is not None and after.spread is not None:
            least, most = zip(before.spread, after.spread, strict=True)
            beyond &= max(least) > min(most)  # they do not overlap
        yield Change(where, name, before, after, ratio - 1, by_spread, beyond)


def direction(name: str) -> int | None:
    """Return 1 if larger values are better, -1 if worse, and None if it is no figure."""
    if name.startswith(_EDGES):
        return None
    return next((better for pattern, better in DIRECTIONS if pattern.search(name)), None)


def _figure(name: str, row: Mapping[str, Any]) -> Figure:
    bare = name.removeprefix("median_")
    for low, high in _SPREADS:
        for base in (name, bare):
            least, most = row.get(low + base), row.get(high + base)
            if _is_number(least) and _is_number(most):
                return Figure(float(row[name]), (float(least), float(most)))
    return Figure(float(row[name]))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _warnings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in ("cpu", "cores", "kernel", "python", "numpy"):
        values = [whole.get("machine", {}).get(name) for whole in (before, after)]
        if values[0] != values[1]:
            yield f"not the same {name}: {values[0]} and {values[1]}"
    for which, whole in (("first", before), ("second", after)):
        cores = whole.get("machine", {}).get("cores") or 1
        if (load := whole.get("load")) is not None and load > cores / 2:
            yield f"something else was running before the {which} one began: a load of {load:.2g}"


def lines(
    found: MeasurementDifference, names: Sequence[str], *, everything: bool = False
) -> list[str]:
    """Return the report, for people.

    Args:
        found: what differs.
        names: of the two files.
        everything: also what is within noise.
    """
    text = [f"WARNING: {warning}" for warning in found.warnings]
    text.append(f"before: {names[0]}; after: {names[1]}; {len(found.changes)} figures in both")
    sections = [("slower", found.slower), ("faster", found.faster)]
    if everything:
        sections.append(("within noise", [one for one in found.changes if not one.beyond]))
    for title, changes in sections:
        text.append(f"\n{title}: {len(changes) or 'nothing'}")
        for one in changes:
            how = "spreads do not overlap" if one.by_spread else "no spread known"
            text.append(
                f"  {one.worse:+7.1%}  {one.name}: {_shown(one.before)} -> {_shown(one.after)}  "
                f"({how})  {one.where}"
            )
    for title, rows in (("only before", found.only_before), ("only after", found.only_after)):
        text += [f"\n{title}: {len(rows)} rows"] if rows else []
    return text


def _shown(figure: Figure) -> str:
    if figure.spread is None:
        return f"{figure.value:.4g}"
    least, most = figure.spread
    return f"{figure.value:.4g} ({least:.4g} to {most:.4g})"
