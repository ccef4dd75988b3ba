# SPDX-License-Identifier: Apache-2.0
"""Draw the picture of docs/live-page.md: two jobs on a tree of switches, of which one is stuck.

Run from a checkout with the extra `browser`, chromium and chromedriver:

    .venv/bin/python tools/picture_live_page.py
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import p4reduce
from headless_chromium import headless, resized
from p4reduce.variables import CONTROLLER, INTERFACE
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System
from p4reduce_lab.topology import LabTopology

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "live-page.png"
TREE = LabTopology.tree(2, 4)
PORTS = {"train": (1, 2, 5, 6), "tune": (3, 4, 7, 8)}  # each job has ranks below both leaves
STUCK_AFTER = 12  # collectives of the second job
WATCHED = 25.0  # seconds before the picture
WIDTH = 1100


def main() -> None:
    """Start all of it, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=TARGET)
    output = parser.parse_args().output
    choice = replace(choose("embedded", "local"), web=True)
    with run_directory() as directory, System(choice, directory, directory, TREE) as tree:
        tree.start()
        tree.wait_ready()
        for job, ports in PORTS.items():
            for rank, port in enumerate(ports):
                given = (tree.variables(), job, rank, port)
                threading.Thread(target=take_part, args=given, daemon=True).start()
        take_picture(f"http://{tree.page_address}/", output)
    print(output)


def take_part(variables: dict[str, str], job: str, rank: int, port: int) -> None:
    """Sum for ever; the last rank of job "tune" stops."""
    comm = p4reduce.init(
        rank,
        len(PORTS[job]),
        variables[CONTROLLER],
        job,
        interface=variables[INTERFACE].replace("{port}", str(port)),
        slots=32,
        timeout=600,
    )
    gradient = np.random.default_rng(rank).normal(size=20_000).astype(np.float32)
    gradient[:9_000] = 0
    for number in itertools.count():
        if job == "tune" and port == max(PORTS[job]) and number == STUCK_AFTER:
            threading.Event().wait()
        with contextlib.suppress(p4reduce.P4ReduceError):  # this process ends in the midst of it
            comm.allreduce(gradient)
        time.sleep(0.4 + 0.3 * np.sin(number / 4))


def take_picture(url: str, output: Path) -> None:
    """Show the page for a while, and keep what it looks like."""
    with headless() as browser:
        resized(browser, WIDTH)
        browser.get(url)
        time.sleep(WATCHED)
        resized(browser, WIDTH)
        browser.save_screenshot(str(output))


if __name__ == "__main__":
    main()
