# SPDX-License-Identifier: Apache-2.0
"""Instructions that BMv2 takes for a contribution with two commits' programs, counted by valgrind.

BMv2's speed varies by half from run to run on a virtual machine, so that some per cent cannot be
told by the clock; a count of instructions is nearly the same each time, whatever else runs. The
load is that of contributions.py; each program is counted with few and with many contributions, and
the difference is what these take, without the start. The busiest thread parses, matches and sums.

    python -m bench.bmv2.instructions --earlier /tmp/earlier [--contributions 2000] [--json FILE]

See compare.py for how to get the earlier program. Takes valgrind, and some minutes.
"""

from __future__ import annotations

import re
import select
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.launch import DEVICE_ID

from bench.bmv2.compare import earlier_program
from bench.bmv2.contributions import Rank, need_bmv2
from bench.program import Option, Row, read_options, run, tell
from bench.switch.job import RANKS, SLOTS, configure

DEADLINE = 60.0  # seconds without a result: valgrind is slow
FEW = 200  # contributions
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class CountedSwitch(Bmv2Switch):
    """BMv2 under callgrind, which writes a file for each thread when it ends."""

    def __init__(self, directory: Path, ports: Mapping[int, str]) -> None:
        super().__init__(directory, ports)
        files = directory / "counted"
        options = ["--separate-threads=yes", f"--callgrind-out-file={files}"]
        self.prefix = ["valgrind", "--tool=callgrind", *options]

    def instructions(self) -> dict[str, int]:
        """Of each thread, after the end."""
        found = {}
        for file in self.directory.glob("counted-*"):
            if match := _TOTALS.search(file.read_text()):
                found[file.name] = int(match[1])
        if not found:
            raise RuntimeError(f"valgrind wrote no counts; the log is\n{self.log.read_text()}")
        return found


def count(program: PipelineProgram, contributions: int) -> dict[str, int]:
    """Count the instructions of each thread in a whole run of a number of contributions."""
    with ExitStack() as cleanup:
        directory = cleanup.enter_context(run_directory())
        veths = cleanup.enter_context(VethPorts(RANKS))
        switch = CountedSwitch(directory, veths.switch_side)
        with switch:
            drive(switch.grpc_address, veths.worker_side, program, contributions)
        return switch.instructions()


def drive(
    address: str, ends: Mapping[int, str], program: PipelineProgram, contributions: int
) -> None:
    """Contribute until that many results have come, and check them."""
    block = np.arange(256, dtype=np.int32)
    expected = np.frombuffer((RANKS * block).astype(">i4").tobytes(), np.uint8)
    with ExitStack() as cleanup:
        client = SwitchClient.connect(address, DEVICE_ID, 1)
        cleanup.callback(client.close)
        configure(client, RANKS, SLOTS, program)
        lanes = block.astype(">i4").tobytes()
        members = [Rank(rank, ends[rank + 1], SLOTS, lanes) for rank in range(RANKS)]
        poll = select.poll()
        for member in members:
            cleanup.callback(member.close)
            poll.register(member, select.POLLIN)
            member.send(np.arange(SLOTS))
        done, heard = 0, time.monotonic()
        while done < contributions:
            poll.poll(1000)
            came = sum(member.turn(expected) for member in members)
            done += came
            heard = time.monotonic() if came else heard
            if time.monotonic() - heard > DEADLINE:
                raise TimeoutError(f"no result within {DEADLINE:g} s: frames were lost")


def measure(name: str, program: PipelineProgram, contributions: int) -> Row:
    """Count with few contributions and with more, and take the difference for each."""
    few, many = count(program, FEW), count(program, FEW + contributions)
    return {
        "name": name,
        "all_threads": (sum(many.values()) - sum(few.values())) / contributions,
        "busiest_thread": (max(many.values()) - max(few.values())) / contributions,
    }


def main() -> None:
    options = read_options(
        __doc__,
        earlier=Option(None, "folder of the other program, compiled", Path),
        contributions=2000,
    )
    programs = {"earlier": earlier_program(options.earlier), "now": load_program()}
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not on PATH: apt-get install valgrind")
    need_bmv2()
    tell(options, (measure(name, one, options.contributions) for name, one in programs.items()))


if __name__ == "__main__":
    run(main)
