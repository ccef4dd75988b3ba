# SPDX-License-Identifier: Apache-2.0
"""One look for all pictures (`p4reduce.mplstyle`), and figures without a window."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

INK, FAINT, GRID = "#1f2933", "#9aa5b1", "#e4e7eb"
_STYLE = Path(__file__).with_name("p4reduce.mplstyle")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_style(draw: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that draws pictures in this look."""

    @wraps(draw)
    def styled(*args: _P.args, **options: _P.kwargs) -> _T:
        from matplotlib import style  # here, as it takes a second

        with style.context(_STYLE):
            return draw(*args, **options)

    return styled


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Any:
    """Return an empty figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path, title: str = "") -> None:
    """Write a PNG, with a title above all panels."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
