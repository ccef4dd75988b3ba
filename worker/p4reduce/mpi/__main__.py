# SPDX-License-Identifier: Apache-2.0
"""``python -m p4reduce.mpi build [DIRECTORY]``: compile the library to preload, print its path."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p4reduce.errors import LaunchError
from p4reduce.mpi.building import build


def main() -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m p4reduce.mpi", description="All-reduces of MPI programs by the switch."
    )
    commands = parser.add_subparsers(required=True, metavar="build")
    command = commands.add_parser(
        "build", help="compile libp4reduce_pmpi.so by mpicc, and print its path"
    )
    command.add_argument("directory", nargs="?", type=Path, default=Path(), help="default: here")
    arguments = parser.parse_args()
    try:
        print(build(arguments.directory.resolve()))
    except LaunchError as error:
        print(f"p4reduce.mpi: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
