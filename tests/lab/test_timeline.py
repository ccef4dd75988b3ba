# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-lab timeline`: traces of several ranks in one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from p4reduce_lab.cli import commands
from p4reduce_lab.errors import LabError
from p4reduce_lab.timeline import align, draw, last_ranks, read_trace


def span(name: str, ident: str, begin: float, end: float, cat: str = "collective") -> list[Any]:
    common = {"name": name, "id": ident, "cat": cat, "pid": 0}
    return [{**common, "ph": "b", "ts": begin * 1e6}, {**common, "ph": "e", "ts": end * 1e6}]


def write(path: Path, rank: int, called: float, offset: float = 1000.0) -> Path:
    """A trace of two collectives that overlap, the second one called at 2 s."""
    events: list[Any] = []
    for number, begin in enumerate((called, 2.0)):
        ident = f"{rank}.{number}"
        events += span(f"allreduce {number} ('g')", ident, begin, 4.0 + number)
        events += span("preparing", ident, begin, begin + 0.1)
        events += span("receiving", ident, begin + 0.5, 4.0 + number)
        events += span("sending", ident, begin + 0.5, 3.0)
    events += span("waiting for rank 1", f"{rank}.0.1", called, 2.0, "waiting")
    events.append({"ph": "i", "ts": 1.5e6, "name": "1 again", "cat": "retransmission"})
    about = {"rank": rank, "host": "here", "wall_minus_monotonic": offset}
    path.write_text(json.dumps({"traceEvents": events, "otherData": about}))
    return path


def test_what_overlaps_has_rows_of_its_own(tmp_path: Path) -> None:
    shown = read_trace(write(tmp_path / "0.json", 0, 1.0))
    assert [one.lane for one in shown.collectives] == [0, 1]
    assert shown.again == [1.5]
    assert shown.waits == [("waiting for rank 1", 1.0, 2.0)]


def test_who_came_last(tmp_path: Path) -> None:
    ranks = [read_trace(write(tmp_path / f"{rank}.json", rank, 1.0 + rank)) for rank in range(2)]
    assert last_ranks(ranks)["allreduce 0 ('g')"] == 1


@pytest.mark.parametrize(("apart", "shift"), [(0.001, 0.0), (5.0, 5.0)], ids=["one", "two hosts"])
def test_clocks_of_other_hosts_are_brought_together(
    tmp_path: Path, apart: float, shift: float
) -> None:
    ranks = [
        read_trace(write(tmp_path / f"{rank}.json", rank, 1.0, 1000.0 + rank * apart))
        for rank in range(2)
    ]
    assert align(ranks) == pytest.approx(4.0 + shift)
    assert ranks[0].collectives[0].begin == pytest.approx(0.0)
    assert ranks[1].collectives[0].begin == pytest.approx(shift)
    assert ranks[1].again == pytest.approx([0.5 + shift])


def test_the_picture(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / f"{rank}.json", rank, 1.0 + rank)) for rank in range(2)]
    picture = tmp_path / "timeline.png"
    result = CliRunner().invoke(commands, ["timeline", *paths, "-o", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(LabError, match="nothing is between 9 and 8 s"):
        draw([read_trace(Path(path)) for path in paths], picture, 9, 8)


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"traceEvents": []}')
    with pytest.raises(LabError, match=r"other\.json is not a trace of `Communicator\.trace`"):
        read_trace(other)
