# SPDX-License-Identifier: Apache-2.0
"""The packet test of docs/tutorials/packet-test.md passes as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packet_jobs import Jobs
from packet_testbed import Testbed
from page_blocks import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "packet-test.md"


def test_the_test_of_the_page(bed: Testbed, jobs: Jobs) -> None:
    text = next(block.text for block in blocks_of(PAGE) if block.language == "python")
    names: dict[str, Any] = {}
    exec(compile(text, str(PAGE), "exec"), names)
    names["test_a_repeated_contribution_is_not_added"](bed, jobs)
