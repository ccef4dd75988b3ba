# SPDX-License-Identifier: Apache-2.0
"""GitHub's workflow files fit their schema, and name what is there."""

from __future__ import annotations

import re
import sys

import pytest
from distributions import run
from needed import ROOT, needs

pytestmark = pytest.mark.engines
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@needs(packages=("check_jsonschema",))
def test_fit_the_schema() -> None:
    assert WORKFLOWS
    schema = ("--builtin-schema", "vendor.github-workflows")
    run(sys.executable, "-m", "check_jsonschema", *schema, *WORKFLOWS)


def test_call_targets_and_tools_that_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for workflow in WORKFLOWS:
        text = workflow.read_text()
        for target in re.findall(r"\bmake ([a-z-]+)", text):
            assert re.search(rf"(?m)^(?:[a-z -]+ )?{target}:", makefile), (workflow.name, target)
        for tool in re.findall(r"\btools/[\w-]+(?:\.py)?", text):
            assert (ROOT / tool).exists(), (workflow.name, tool)
