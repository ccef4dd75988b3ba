# SPDX-License-Identifier: Apache-2.0
"""A demo worker's reports to the launcher, by files in the run's directory.

Files, because they work the same in one network namespace or in many. Progress is one JSON object
a line, appended; the report is written when the rank has ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from p4reduce.compression import SwitchLink

from p4reduce_lab.demo.training.sgd import SgdProgress

INTERVAL = 0.1  # seconds between two lines of progress


@dataclass(frozen=True)
class ProgressSample(SgdProgress):
    """A line of progress: where the rank's training is, and what it has sent so far."""

    contributions: int


class ProgressWriter:
    """Appends a :class:`ProgressSample` every INTERVAL seconds, and at the last step."""

    def __init__(self, directory: Path, rank: int, steps: int) -> None:
        self._file = progress_path(directory, rank).open("w", buffering=1)
        self._steps = steps
        self._next = 0.0

    def due(self, progress: SgdProgress) -> bool:
        """Whether it is time for a line."""
        return progress.step == self._steps or time.monotonic() >= self._next

    def write(self, progress: SgdProgress, contributions: int) -> None:
        """Append a line."""
        self._next = time.monotonic() + INTERVAL
        sample = {**asdict(progress), "contributions": contributions}
        self._file.write(json.dumps(sample) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class ProgressReader:
    """Follows a rank's progress."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = progress_path(directory, rank)
        self._offset = 0
        self.latest: ProgressSample | None = None

    def poll(self) -> ProgressSample | None:
        """Return the latest sample, or None if there is none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return None
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        self._offset += len(whole)
        if whole:
            self.latest = ProgressSample(**json.loads(whole.splitlines()[-1]))
        return self.latest


@dataclass(frozen=True)
class Compared:
    """A rank's report of the earlier training, to compare its own with.

    Attributes:
        weights: SHA-256 of its final weights.
        accuracy: Test accuracy of those.
        seconds: From its first step to the last.
    """

    weights: str
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Notice:
    """A warning of the library: its time on the monotonic clock, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class RankReport:
    """A rank's report at its end.

    Attributes:
        weights: SHA-256 of its final weights.
        results: SHA-256 of all its all-reduces' results.
        accuracy: Test accuracy of its final weights.
        sent, retransmissions: Contribution frames sent, with repeated ones; repeated ones alone.
        round_trip_us: Median round trip, microseconds.
        seconds: From the first step to the last.
        connected_seconds: The same, with the sums outside the training included.
        compared: None where there was one training only.
        link: As measured, for CAT's levels; None where gradients were sent whole.
        step_ends: Of each step, on the monotonic clock; empty without a fault.
        notices: The warnings.
        recoveries: How often the switch was found again.
        resumed: The step at which fewer ranks went on, from 0; None if all stayed.
    """

    weights: str
    results: str
    accuracy: float
    sent: int
    retransmissions: int
    round_trip_us: float
    seconds: float
    connected_seconds: float
    compared: Compared | None = None
    link: SwitchLink | None = None
    step_ends: Sequence[float] = ()
    notices: Sequence[Notice] = ()
    recoveries: int = 0
    resumed: int | None = None

    @property
    def all_weights(self) -> tuple[str, ...]:
        """The weights of all trainings, which must be equal on all ranks."""
        return (self.weights, *([self.compared.weights] if self.compared else []))

    def save(self, directory: Path, rank: int) -> None:
        """Write it as JSON."""
        report_path(directory, rank).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, directory: Path, rank: int) -> RankReport:
        """Read what :meth:`save` wrote."""
        values = json.loads(report_path(directory, rank).read_text())
        for name, kind in (("compared", Compared), ("link", SwitchLink)):
            if values[name] is not None:
                values[name] = kind(**values[name])
        values["notices"] = [Notice(**notice) for notice in values["notices"]]
        return cls(**values)


def progress_path(directory: Path, rank: int) -> Path:
    """The file that a rank appends its progress to."""
    return directory / f"progress-{rank}.jsonl"


def report_path(directory: Path, rank: int) -> Path:
    """The file of a rank's report."""
    return directory / f"report-{rank}.json"
