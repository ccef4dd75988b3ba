# SPDX-License-Identifier: Apache-2.0
"""What the programs of this package share: a command line, what they print, and how they end."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_common.figures import three_digits
from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import LabError, UnavailableError
from p4reduce_lab.measured.machine import describe, machine

from bench.pages import put_text

CANNOT_RUN = 77
"""The exit code of a program that cannot run on this machine; it says why on stderr."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """An option of a command line.

    Attributes:
        default: a list takes any number of values.
        kind: of a value; None: the default's type, or that of a list's first value.
    """

    default: Any
    help: str | None = None
    kind: Callable[[str], Any] | None = None
    choices: Sequence[str] | None = None


SWITCH = Option("embedded", choices=("embedded", "bmv2"))


def read_options(
    doc: str | None, /, *, to_json: bool = True, docs: str = "", **wanted: Any
) -> argparse.Namespace:
    """Parse the command line.

    Args:
        doc: of the program; its first paragraph is the help.
        to_json: whether there is `--json FILE`, for `tell`.
        docs: the page that `--docs` updates; "": there is no such option.
        wanted: options by their names, each an `Option` or its default. False makes a switch.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0])
    for name, value in wanted.items():
        one = value if isinstance(value, Option) else Option(value)
        flag = f"--{name.replace('_', '-')}"
        if one.default is False:
            parser.add_argument(flag, action="store_true", help=one.help)
            continue
        several = isinstance(one.default, (list, tuple))
        kind = one.kind or type(one.default[0] if several else one.default)
        more: dict[str, Any] = {"nargs": "*"} if several else {}
        given = {"type": kind, "default": one.default, "help": one.help, "choices": one.choices}
        parser.add_argument(flag, **given, **more)
    if to_json:
        parser.add_argument("--json", type=Path, help="also write the results to this file")
    if docs:
        parser.add_argument("--docs", action="store_true", help=f"update {docs}")
    return parser.parse_args()


def some(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return some options by their names."""
    return {name: getattr(options, name) for name in names}


def run(main: Callable[[], None]) -> None:
    """Run a program; what it cannot do here, or what failed, is a message and an exit code."""
    try:
        main()
    except UnavailableError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except ModuleNotFoundError as error:
        print(f"this needs {error.name}, which is not installed", file=sys.stderr)
        sys.exit(CANNOT_RUN)
    except LabError as error:
        sys.exit(str(error))


def tell(options: argparse.Namespace, rows: Iterable[Row], what: str = "") -> list[Row]:
    """Print the machine, what was measured, and each row as it comes; write `--json`.

    Args:
        rows: a figure by its name, which ends in its unit. All have the same names.
        what: a line for people.

    Returns the rows.
    """
    host = machine()
    print(f"{describe(host)}\n{what}" if what else describe(host), flush=True)
    came: list[Row] = []
    for row in rows:
        if not came:
            print("  ".join(_padded(row, name, name.replace("_", " ")) for name in row))
        came.append(row)
        print("  ".join(_padded(row, name, figure_text(row[name])) for name in row), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": host, "results": came}, indent=1) + "\n")
    return came


def tell_table(
    options: argparse.Namespace,
    page: Path,
    name: str,
    head: Sequence[str],
    cells: Sequence[Sequence[str]],
    what: str | None = None,
) -> None:
    """Print a table of a page; with `--docs`, put it there.

    Args:
        what: a line for people below one about the machine, where `tell` printed none.
    """
    if what is not None:
        print(f"{describe(machine())}\n{what}\n")
    print(markdown_table(head, cells))
    if options.docs:
        put_text(page, name, markdown_table(head, cells))


def figure_text(value: object) -> str:
    """Return a figure for people."""
    if isinstance(value, float):
        return three_digits(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def _padded(row: Row, name: str, text: str) -> str:
    if isinstance(row[name], str):
        return f"{text:{max(44 if name == 'name' else 12, len(name))}}"
    return f"{text:>{max(8, len(name))}}"
