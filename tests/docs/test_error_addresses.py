# SPDX-License-Identifier: Apache-2.0
"""Each error of the library names its section of the documentation, and the section is there."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

import p4reduce
import pytest
from p4reduce import errors
from p4reduce.session.joining import PlaceLostError
from test_page_links import anchors

ROOT = Path(__file__).parents[2]
ERRORS = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, p4reduce.P4ReduceError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_leads_to_its_section(kind: type[p4reduce.P4ReduceError]) -> None:
    page, _, anchor = kind.address.partition("#")
    assert anchor in anchors(ROOT / page)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of exceptions came with Python 3.11")
def test_the_traceback_ends_with_the_address() -> None:
    error = p4reduce.WorkerLostError("rank 1 was lost", ranks=[1])
    for one in (error, pickle.loads(pickle.dumps(error))):
        text = "".join(traceback.format_exception(one))
        assert text.endswith("rank 1 was lost\nSee docs/troubleshooting.md#workerlosterror\n")
    assert str(error) == "rank 1 was lost"
    own = traceback.format_exception(PlaceLostError("another controller has the job"))
    assert own[-1] == "See docs/troubleshooting.md#controllerunreachableerror\n"
