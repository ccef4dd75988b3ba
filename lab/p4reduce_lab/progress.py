# SPDX-License-Identifier: Apache-2.0
"""The progress of a long command: a bar on a terminal, lines elsewhere, and a last line on Ctrl-C.

All of it goes to standard error, so a command's results can be piped on. While a bar is shown,
whatever is printed appears above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

PLAIN_LINES = 10  # about; without a terminal


def duration(seconds: float) -> str:
    """Return a time in short words: "8 s", "3 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def rate_text(steps: float, seconds: float, unit: str) -> str:
    """Return a rate with a number that can be read: "3.4 steps/s", "2.5 cells/min"."""
    per_second = steps / seconds if seconds > 0 else 0.0
    if per_second >= 1:
        return f"{per_second:.1f} {unit}/s"
    if per_second * 60 >= 1:
        return f"{per_second * 60:.1f} {unit}/min"
    return f"{per_second * 3600:.1f} {unit}/h"


class LongWork:
    """Shows the progress of long work. A context manager.

    What ends it early is not held up: this only says how much was done, and what is kept.

    Args:
        unit: what is counted, in the plural: "cells".
        total: their number.
        work: of all of them, where they are not alike: seconds that each is thought to take, say.
            The bar and the time left go by it. None: all are alike.
        console: standard error, unless a test says otherwise.
        kept: says where what was done so far can be found, if it is left early.
        clock: in seconds.
    """

    def __init__(
        self,
        unit: str,
        total: int,
        *,
        work: float | None = None,
        console: Console | None = None,
        kept: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._total = unit, total
        self._work = float(total) if work is None else work
        self._console = console or Console(stderr=True, highlight=False)
        self._kept = kept
        self._clock = clock
        self._done = 0
        self._work_done = 0.0
        self._said = 0  # of the plain lines
        self._began = clock()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=20),
                _ProgressRate(self),
                _description(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._work)

    def now(self, text: str) -> None:
        """Show the present work beside the bar. Without a terminal nothing is printed."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)

    def to(self, done: int, work: float | None = None) -> None:
        """Set how many are done. `work` is their amount, if units differ."""
        self._done = done
        self._work_done = float(done) if work is None else work
        if self._bar is not None:
            self._bar.update(self._task, completed=self._work_done)
            return
        share = self._work_done / self._work if self._work else 1.0
        line = int(share * PLAIN_LINES + 1e-9)  # 0.3 of the work may be a little less
        if line > self._said or done == self._total:
            self._said = line
            self._print(self.speed())

    def advance(self, work: float = 1.0) -> None:
        """Count one more as done."""
        self.to(self._done + 1, self._work_done + work)

    def speed(self) -> str:
        """Return the progress: "3/12 cells, 2.5 cells/min, 4 min left"."""
        seconds = self._clock() - self._began
        text = f"{self._done}/{self._total} {self._unit}"
        if self._work_done <= 0:
            return f"{text}, {duration(seconds)} so far"
        text += f", {rate_text(self._done, seconds, self._unit)}"
        left = max(self._work - self._work_done, 0.0) * seconds / self._work_done
        return f"{text}, {duration(left)} left" if left else f"{text}, {duration(seconds)} in all"

    def __enter__(self) -> LongWork:
        self._began = self._clock()
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
            seconds = duration(self._clock() - self._began)
            kept = f"; {found}" if (found := self._kept()) else ""
            self._print(f"ended after {self._done} of {self._total} {self._unit}, {seconds}{kept}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def waiting(what: str, console: Console | None = None) -> Iterator[None]:
    """Show the time of work whose progress is unknown, such as a compiler's run.

    Args:
        what: in words: "p4c compiles p4reduce.p4".
        console: standard error, unless a test says otherwise.
    """
    console = console or Console(stderr=True, highlight=False)
    began = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"{what}{text}", markup=False, soft_wrap=True)

    try:
        if console.is_terminal:
            columns = SpinnerColumn(), _description(), TimeElapsedColumn()
            with Progress(*columns, console=console, transient=True) as shown:
                shown.add_task(what, total=None)
                yield
        else:
            tell(" ...")
            yield
    except BaseException:
        tell(f": ended after {duration(time.monotonic() - began)}")
        raise
    tell(f": {duration(time.monotonic() - began)}")


class _ProgressRate(ProgressColumn):
    """Figures beside a bar."""

    def __init__(self, work: LongWork) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._of = work

    def render(self, task: Task) -> Text:
        return Text(self._of.speed())


def _description() -> TextColumn:
    """The text beside a bar: in one line, and brackets are no markup."""
    column = Column(no_wrap=True, overflow="ellipsis")
    return TextColumn("{task.description}", markup=False, table_column=column)
