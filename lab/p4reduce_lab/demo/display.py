# SPDX-License-Identifier: Apache-2.0
"""The progress of a training on the terminal, or as plain lines elsewhere.

Both show the rate and the time left, and the progress on Ctrl-C.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from p4reduce_lab.progress import PLAIN_LINES, duration


@dataclass(frozen=True)
class DemoStatus:
    """The displayed state: rank 0's view of the training, and the rate of all ranks together."""

    step: int
    loss: float
    accuracy: float | None
    contributions_per_second: float

    def text(self) -> str:
        """The state in one line, without the step."""
        accuracy = "   -  " if self.accuracy is None else f"{self.accuracy:6.2%}"
        return (
            f"loss {self.loss:6.4f}  accuracy {accuracy}  "
            f"{self.contributions_per_second:7,.0f} contributions/s"
        )


class Display(Protocol):
    """Shows a state. A context manager, because a live display must be ended."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, status: DemoStatus) -> None:
        """Shows the latest status."""


def display(console: Console, steps: int) -> Display:
    """Return a bar on a terminal, lines otherwise, for a training of this many steps."""
    return _Bar(console, steps) if console.is_terminal else _Lines(console, steps)


class _TrainingRate:
    """How fast a training goes, from the first step that was seen."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._first: tuple[float, int] | None = None
        self._last: DemoStatus | None = None

    def took(self, status: DemoStatus) -> str:
        """Take a status, and return the rate and the time left; empty while neither is known."""
        now = time.monotonic()
        self._last = status
        if self._first is None:
            self._first = now, status.step
        seconds, steps = now - self._first[0], status.step - self._first[1]
        if seconds <= 0 or steps <= 0:
            return ""
        left = (self._steps - status.step) * seconds / steps
        return f"{steps / seconds:.1f}/s, {duration(left)} left"

    def left_by(self, error: BaseException | None) -> None:
        """Say how far it was, if Ctrl-C or another signal ends it."""
        if error is None or isinstance(error, Exception):
            return
        far = "no step was done yet"
        if self._last is not None:
            far = f"after step {self._last.step} of {self._steps}, {self._last.text()}"
        self._console.print(f"  ended: {far}", highlight=False)


class _Bar:
    def __init__(self, console: Console, steps: int) -> None:
        self._rate = _TrainingRate(console, steps)
        self._progress = Progress(
            # Together with DemoStatus.text() within the 80 columns of a usual terminal; the text of
            # the rate has a line of its own.
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._progress.add_task("the workers are starting", total=steps)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._rate.left_by(error)

    def show(self, status: DemoStatus) -> None:
        speed = self._rate.took(status)
        text = f"{status.text()}\n{speed}" if speed else status.text()
        self._progress.update(self._task, completed=status.step, description=text)


class _Lines:
    def __init__(self, console: Console, steps: int) -> None:
        self._rate = _TrainingRate(console, steps)
        self._console = console
        self._steps = steps
        self._next = 0
        self._shown = 0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._rate.left_by(error)

    def show(self, status: DemoStatus) -> None:
        speed = self._rate.took(status)
        due = status.step >= self._next or status.step == self._steps
        if not due or status.step == self._shown:
            return
        self._shown = status.step
        self._next = status.step + max(1, self._steps // PLAIN_LINES)
        self._console.print(
            f"  step {status.step:4d}/{self._steps}  {status.text()}  {speed}".rstrip(),
            highlight=False,
            soft_wrap=True,
        )
