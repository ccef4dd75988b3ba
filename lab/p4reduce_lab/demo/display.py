# SPDX-License-Identifier: Apache-2.0
"""The progress of a training: a bar on a terminal, plain lines elsewhere.

Both show the rate and the time left, and the progress on Ctrl-C.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from p4reduce_lab.demo.training.sgd import SgdProgress
from p4reduce_lab.progress import PLAIN_LINES, duration


class TrainingDisplay:
    """Shows a training of so many steps. A context manager, because a bar must be ended."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._first: tuple[float, int] | None = None  # when, and which step
        self._latest = ""
        self._next = self._shown = 0  # steps with a line
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                # Together with the state within the 80 columns of a usual terminal; the text of
                # the rate has a line of its own.
                BarColumn(bar_width=16),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.description}"),
                console=console,
            )
            self._task = self._bar.add_task("the workers are starting", total=steps)

    def __enter__(self) -> TrainingDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if error is not None and not isinstance(error, Exception):  # Ctrl-C, or another signal
            far = self._latest or "no step was done yet"
            self._console.print(f"  ended: {far}", highlight=False)

    def show(self, state: SgdProgress, contributions_per_second: float) -> None:
        """Show rank 0's view of the training, and the rate of all ranks together."""
        accuracy = "   -  " if state.accuracy is None else f"{state.accuracy:6.2%}"
        text = (
            f"loss {state.loss:6.4f}  accuracy {accuracy}  "
            f"{contributions_per_second:7,.0f} contributions/s"
        )
        self._latest = f"after step {state.step} of {self._steps}, {text}"
        speed = self._speed(state.step)
        if self._bar is not None:
            text = f"{text}\n{speed}" if speed else text
            self._bar.update(self._task, completed=state.step, description=text)
        elif state.step != self._shown and (state.step >= self._next or state.step == self._steps):
            self._shown = state.step
            self._next = state.step + max(1, self._steps // PLAIN_LINES)
            self._console.print(
                f"  step {state.step:4d}/{self._steps}  {text}  {speed}".rstrip(),
                highlight=False,
                soft_wrap=True,
            )

    def _speed(self, step: int) -> str:
        """The rate since the first step that was seen, and the time left; empty if unknown."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, step
        seconds, steps = now - self._first[0], step - self._first[1]
        if seconds <= 0 or steps <= 0:
            return ""
        left = (self._steps - step) * seconds / steps
        return f"{steps / seconds:.1f}/s, {duration(left)} left"
