# SPDX-License-Identifier: Apache-2.0
"""From the kill of one replica of four to the survivors' next step: the switch beside Gloo.

A switch and a controller, torchft's lighthouse, and four processes of
`examples/pytorch_torchft.py`, one of which is killed in the middle of a step. The groups take
turns.

    python -m bench.pytorch.replicas [--kills 3] [--timeout 30] [--heartbeat 5] [--pause 0.5]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from p4reduce import launch
from p4reduce_common.host_port import format_host_port
from p4reduce_common.threads import new_thread

from bench.measure import in_turns, spread
from bench.program import Option, read_options, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch_torchft.py"
GROUPS = ("p4reduce", "gloo")
REPLICAS = 4
STEPS_BEFORE = 5  # that all replicas do together
DEADLINE = 240.0  # seconds to begin
_LINE = re.compile(r"replica \d+: step \d+ of (?P<of>\d+) replicas, loss [\d.]+(?P<not>, which)?")


class Replica:
    """A process of the example.

    Attributes:
        steps: when it finished one that counts, and how many replicas took part.
    """

    def __init__(self, number: int, arguments: list[str], environment: dict[str, str]) -> None:
        self.steps: list[tuple[float, int]] = []
        command = [sys.executable, "-u", str(EXAMPLE), "--replica", str(number), *arguments]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        new_thread(self._read, f"replica-{number}").start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (match := _LINE.match(line)) and not match["not"]:
                self.steps.append((time.monotonic(), int(match["of"])))

    def check(self) -> None:
        """Raise RuntimeError with its last words if it has ended."""
        if self.process.poll() is not None:
            self._errors.seek(0)
            raise RuntimeError(self._errors.read().decode()[-3000:])

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._errors.close()


def seconds_without(group: str, options: argparse.Namespace, draw: random.Random) -> float:
    """Return the seconds from a kill until all survivors have done a step without the victim."""
    address = format_host_port("127.0.0.1", options.port)
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse"))]
    lighthouse += ["--bind", address, "--min_replicas", "2"]
    lighthouse += ["--heartbeat_timeout_ms", str(int(1000 * options.heartbeat))]
    arguments = ["--group", group, "--timeout", str(options.timeout), "--steps", "1000000"]
    arguments += ["--pause", str(options.pause)]
    with launch.start(ranks=REPLICAS, unix=True) as network, ExitStack() as ending:
        environment = {**os.environ, **network.variables, "OMP_NUM_THREADS": "1"}
        environment["TORCHFT_LIGHTHOUSE"] = f"http://{address}"
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(lighthouse, stdout=quiet, stderr=quiet)
        ending.callback(process.wait)
        ending.callback(process.kill)
        replicas = []
        for number in range(REPLICAS):
            replicas.append(Replica(number, arguments, environment))
            ending.callback(replicas[-1].end)
        together = [(each, 0.0, REPLICAS, STEPS_BEFORE) for each in replicas]
        _wait(together, time.monotonic() + DEADLINE)
        victim = replicas.pop(draw.randrange(REPLICAS))
        _wait([(victim, time.monotonic(), REPLICAS, 1)], time.monotonic() + DEADLINE)
        time.sleep(draw.uniform(0.4, 0.8) * options.pause)  # it computes, the quorum is agreed on
        killed = time.monotonic()
        victim.process.kill()
        without = [(each, killed, REPLICAS - 1, 1) for each in replicas]
        _wait(without, killed + options.timeout + DEADLINE)
        return max(_after(each, killed, REPLICAS - 1)[0] for each in replicas) - killed


def _after(replica: Replica, since: float, size: int) -> list[float]:
    return [when for when, of in list(replica.steps) if when > since and of == size]


def _wait(wanted: list[tuple[Replica, float, int, int]], deadline: float) -> None:
    while not all(len(_after(one, since, size)) >= count for one, since, size, count in wanted):
        for replica, *_ in wanted:
            replica.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"steps so far: {[len(one.steps) for one, *_ in wanted]}")
        time.sleep(0.002)


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        kills=Option(3, "with each group"),
        timeout=Option(30.0, "seconds, of the groups"),
        heartbeat=Option(5.0, "seconds: the lighthouse's"),
        pause=Option(0.5, "seconds of computing in a step"),
        port=Option(29539, "of the lighthouse"),
        seed=random.randrange(10**6),
    )
    print(f"{REPLICAS} replicas, timeout {options.timeout:g} s, seed {options.seed}")
    draw = random.Random(options.seed)

    def kill(group: str) -> float:
        took = seconds_without(group, options, draw)
        print(f"{group}: {took:.2f} s (load average {os.getloadavg()[0]:.1f})", flush=True)
        return took

    found = in_turns({group: partial(kill, group) for group in GROUPS}, options.kills)
    print(f"{options.heartbeat:g} s of it are torchft's lighthouse, which waits for a heartbeat")
    for group in GROUPS:
        print(f"{group}: median {spread(found[group], '.2f', ' s')}, of {options.kills}")
    ours, gloo = (statistics.median(found[group]) for group in GROUPS)
    print(f"p4reduce / gloo: {ours / gloo:.2f}")


if __name__ == "__main__":
    run(main)
