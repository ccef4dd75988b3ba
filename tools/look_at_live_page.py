# SPDX-License-Identifier: Apache-2.0
"""Look at the live page with 64 ranks in ten jobs: at three widths, and by axe-core.

Run from a checkout with the extra `browser`, chromium and chromedriver:

    .venv/bin/python tools/look_at_live_page.py --output build/page

Two of the jobs are stuck. The exit code is 1 if axe-core finds a serious fault, or if the page is
wider than its window.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from headless_chromium import headless, resized
from p4reduce.variables import CONTROLLER, INTERFACE
from p4reduce_lab.choice import choose
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.system import System
from p4reduce_lab.topology import LabTopology

TREE = LabTopology.tree(2, 32)
SIZES = {  # ranks of each job, 64 together
    "bert-large": 16,
    "resnet50": 12,
    "gpt-small": 8,
    "dlrm": 8,
    "sweep-1": 6,
    "sweep-2": 4,
    "sweep-3": 4,
    "sweep-4": 2,
    "eval": 2,
    "notebook-anna": 2,
}
STUCK = {"dlrm": 20, "sweep-3": 12}  # jobs whose last rank stops after that many sums
SLOTS = 16
WIDTHS = (420, 1100, 1920)  # a phone, a laptop, a large screen
WATCHED = 40.0  # seconds before the first picture
SERIOUS = ("serious", "critical")


def main() -> int:
    """Start all of it, take the pictures, and print what axe-core finds."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("build/page"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    choice = replace(choose("embedded", "local"), web=True)
    with run_directory() as directory, System(choice, directory, directory, TREE) as tree:
        tree.start()
        tree.wait_ready()
        port = 0
        for job, ranks in SIZES.items():
            for rank in range(ranks):
                port += 1
                given = (tree.variables(), job, rank, port)
                threading.Thread(target=take_part, args=given, daemon=True).start()
        code = look(f"http://{tree.page_address}/", output)
        logging.disable()  # the ranks find the switch gone, and this process ends
    return code


def take_part(variables: Mapping[str, str], job: str, rank: int, port: int) -> None:
    """Sum for ever; the last rank of some jobs stops."""
    comm = p4reduce.init(
        rank,
        SIZES[job],
        variables[CONTROLLER],
        job,
        interface=variables[INTERFACE].replace("{port}", str(port)),
        slots=SLOTS,
        timeout=600,
    )
    gradient = np.random.default_rng(rank).normal(size=8_000).astype(np.float32)
    gradient[: 1_000 * (len(job) % 6)] = 0
    step = 0
    with contextlib.suppress(p4reduce.P4ReduceError):  # this process ends in the midst of it
        while step != STUCK.get(job) or rank != SIZES[job] - 1:
            step += 1
            comm.allreduce(gradient)
            time.sleep(0.5 + 0.4 * np.sin(step / 4))
        threading.Event().wait()


def look(url: str, output: Path) -> int:
    """Take a picture for each width and colour scheme; return the exit code."""
    script = Path(str(files("axe_core_python") / "axe.min.js")).read_text()
    faults = 0
    with headless() as browser:
        browser.set_script_timeout(120)
        browser.get(url)
        time.sleep(WATCHED)
        browser.execute_script(script)
        for scheme in ("light", "dark"):
            scheme_of: dict[str, Any] = {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]
            }
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_of)
            for width in WIDTHS:
                resized(browser, width)
                picture = output / f"{scheme}-{width}.png"
                browser.save_screenshot(str(picture))
                wide = browser.execute_script("return document.documentElement.scrollWidth")
                found = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
                bad = [each for each in found if each["impact"] in SERIOUS]
                faults += len(bad) + (wide > width)
                too = ", wider than the window" if wide > width else ""
                print(
                    f"{picture}: {wide} pixels wide{too}, axe-core: {len(found)} faults, "
                    f"{len(bad)} of them serious",
                    flush=True,
                )
                for each in found:
                    first = each["nodes"][0]["html"][:120]
                    print(f"  {each['impact']}: {each['id']}, {len(each['nodes'])} times: {first}")
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main())
