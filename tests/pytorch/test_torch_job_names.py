# SPDX-License-Identifier: Apache-2.0
"""A process group's job says in its name which launcher and which ranks it belongs to."""

from __future__ import annotations

import re

import pytest

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

from p4reduce.control.names import MAX_NAME, ROOM_FOR_PARTS, is_job_name
from p4reduce.torch.communicators import label_of, new_name


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        ([], "all ranks"),
        ([0, 1, 2, 3], "ranks 0-3"),
        ([1, 3, 5], "ranks 1,3,5"),
        ([4, 5, 6, 0], "ranks 0,4-6"),
        ([7], "rank 7"),
        (range(0, 64, 2), "ranks 0,2,4,6,8,10,12,14,…"),
    ],
)
def test_the_ranks_are_named(ranks: list[int], label: str) -> None:
    assert label_of(ranks) == label


def test_a_name_fits_several_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_JOB", "a job with a long name " * 4)
    name = new_name(label_of(range(0, 64, 2)) + ", callbacks")
    assert is_job_name(name)
    assert len(name) <= MAX_NAME - ROOM_FOR_PARTS
    assert re.fullmatch(r"a job with .*: ranks 0,2,.*…, callbacks, [0-9a-f]{8}", name)
    assert new_name("all ranks") != new_name("all ranks")
