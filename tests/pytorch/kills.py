# SPDX-License-Identifier: Apache-2.0
"""Trials: torchrun on two or three hosts, and a process of the job is killed at a random moment."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from home import STARTED, Torchruns, directory, hosts
from needed import mark_of, marked_processes
from p4reduce_lab.networks.home import INTERFACE

WORDS = {
    "torchrun": "torch.distributed.run",
    "rank": "started.py",
    "network": "-m p4reduce_lab.deploy",
    "switch": "-m p4reduce_switch",
    "controller": "-m p4reduce_controller",
}
KINDS = (*WORDS, "host")
DEADLINE = 600.0  # seconds; ranks wait 120 s for one that never came, or for a silent store
_RESTARTED = ("switch", "controller")


@dataclass(frozen=True)
class Trial:
    """A job that a kill interrupts.

    Attributes:
        seed: that it was drawn from.
        hosts: how many.
        each: ranks of a host.
        kind: of the victim; "host": all processes of a host.
        host: of the victim.
        rank: among those of the host, if it is one.
        joined: whether it is killed when all ranks sum, and not as soon as it and they exist.
        after: seconds later.
    """

    seed: int
    hosts: int
    each: int
    kind: str
    host: int
    rank: int
    joined: bool
    after: float

    @classmethod
    def drawn(cls, seed: int, kind: str = "") -> Trial:
        """Return the trial of a seed, with a victim of this kind if there is one."""
        draw = random.Random(seed)
        number, each = draw.choice([(2, 1), (2, 2), (3, 1)])
        kind = kind or draw.choice(KINDS)
        host = 0 if kind == "controller" else draw.randrange(number)
        joined = draw.random() < 0.6
        after = draw.uniform(0, 2.0 if joined else 6.0)
        return cls(seed, number, each, kind, host, draw.randrange(each), joined, after)

    @property
    def ranks_there(self) -> range:
        """The ranks on the victim's host."""
        return range(self.host * self.each, (self.host + 1) * self.each)

    def run(self) -> list[str]:
        """Do it. Return what is wrong; processes or files that are left raise AssertionError."""
        with directory() as here, hosts(self.hosts) as (network, environment):
            runs = Torchruns(network, environment, [str(STARTED), str(here)], here, each=self.each)
            try:
                self._kill(runs)
                (here / "end").touch()
                self._wait(runs)
                return self._wrong(runs, here)
            except BaseException:
                print(runs.said, flush=True)
                runs.kill()
                raise

    def _kill(self, runs: Torchruns) -> None:
        deadline = time.monotonic() + DEADLINE
        if self.joined:
            runs.until(*[f"{rank}.pid" for rank in range(self.hosts * self.each)])
        # Before all ranks are there torchrun alone waits, for those that never come too.
        while not (self._all_ranks_run(runs) and (victims := self._victims(runs))):
            assert time.monotonic() < deadline, f"no {self.kind}"
            time.sleep(0.02)
        time.sleep(self.after)  # only which moment it is depends on this, and no verdict
        if self.kind == "host":
            runs.network.run(self.host, "ip", "link", "set", "dev", INTERFACE, "down")
            victims = self._victims(runs)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _all_ranks_run(self, runs: Torchruns) -> bool:
        commands = marked_processes(mark_of(runs.environment)).values()
        ranks = [one for one in commands if WORDS["rank"] in one and WORDS["torchrun"] not in one]
        return len(ranks) == self.hosts * self.each

    def _victims(self, runs: Torchruns) -> list[int]:
        namespace = Path(runs.network.run(self.host, "readlink", "/proc/self/ns/net").strip())
        victims = []
        for pid, command in marked_processes(mark_of(runs.environment)).items():
            with contextlib.suppress(OSError):
                there = Path(f"/proc/{pid}/ns/net").readlink() == namespace
                if there and self._is_victim(pid, command):
                    victims.append(pid)
        return victims

    def _is_victim(self, pid: int, command: str) -> bool:
        if "tether" in command:
            return False  # it is about to be another program
        if self.kind == "host":
            return "janitor" not in command  # which removes what a host's end leaves in /tmp
        if self.kind != "torchrun" and WORDS["torchrun"] in command:
            return False  # the program is among its arguments
        if self.kind == "rank":
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"LOCAL_RANK={self.rank}".encode() not in environ:
                return False
        return WORDS[self.kind] in command

    def _wait(self, runs: Torchruns) -> None:
        """Wait for all that the job has started: a killed torchrun leaves its ranks.

        Another torchrun waits five minutes for one that was killed, which is ended here.
        """
        deadline = time.monotonic() + DEADLINE
        mark = mark_of(runs.environment)
        while left := self._left(mark):
            assert time.monotonic() < deadline, f"left: {left}"
            for process in runs.processes:
                process.poll()  # an ended one that nobody has waited for would be left
            time.sleep(0.1)
        runs.kill()

    def _left(self, mark: str) -> list[str]:
        lasting = self.kind not in ("torchrun", "host")
        commands = marked_processes(mark).values()
        return [one for one in commands if lasting or WORDS["torchrun"] not in one]

    def _wrong(self, runs: Torchruns, here: Path) -> list[str]:
        """Say which ranks neither have right sums nor name what has died.

        The first error of a host's ranks is enough: torchrun ends the others of that host.
        """
        files = [here / f"{rank}.ended" for rank in range(self.hosts * self.each)]
        said = [file.read_text() if file.exists() else "" for file in files]
        right = [
            self._is_right(rank, ended, runs.network.addresses) for rank, ended in enumerate(said)
        ]
        wrong = []
        for rank, ended in enumerate(said):
            first = rank - rank % self.each
            beside = range(first, first + self.each)
            if not right[rank] and (ended or not any(right[one] and said[one] for one in beside)):
                wrong.append(f"rank {rank}: {ended or 'said nothing'}")
        return [*wrong, runs.said] if wrong else []

    def _is_right(self, rank: int, ended: str, addresses: Sequence[str]) -> bool:
        there = rank in self.ranks_there
        if ended == "through":
            return True
        if self.kind in _RESTARTED:
            # While a job begins, it may be an error; one that runs goes on.
            return not self.joined and bool(re.search(r"switch|controller|network", ended))
        if there and (self.kind != "network" or not ended):
            return True  # it was killed, or its torchrun ended it
        if "AssertionError" in ended or not ended:
            return False
        named = [rf"ranks? (?:\d+, )*{one}\b" for one in self.ranks_there]
        if self.kind == "torchrun" and self.host == 0:
            named.append("torchrun")
        if self.kind == "network":
            # Or its switch, by the address at which that does not answer.
            named += ["network", rf"udp:{re.escape(addresses[self.host])}:\d+: no answer"]
        if self.host == 0 and not self.joined:
            # torch's own error where its store is gone before this rank has reached it.
            named.append(rf"connect to .*{re.escape(addresses[0])}\b")
        return any(re.search(one, ended) for one in named)
