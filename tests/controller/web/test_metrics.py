# SPDX-License-Identifier: Apache-2.0
"""Metrics: what Prometheus reads, and that rules and dashboard name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from controller_harness import RunningController, SwitchProcess, contribute, result
from p4reduce_controller.settings import Http
from prometheus_client.parser import text_string_to_metric_families
from test_live_page import get

MONITORING = Path(__file__).parents[3] / "monitoring"
Start = Callable[..., RunningController]


@pytest.fixture
def text(start: Start, switch: SwitchProcess) -> str:
    """The metrics of a controller with a job of two ranks, after one sum."""
    controller = start(switch, http=Http("127.0.0.1:0"))
    ranks = controller.running(switch, 2)
    for rank in ranks:
        contribute(rank, 3)
    for rank in ranks:
        result(rank)
    return get(controller, "/metrics")[1]


def test_values(text: str) -> None:
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["p4reduce_jobs", ("state", "running")] == 1
    assert found["p4reduce_switch_up", ("switch", "switch")] == 1
    assert found[("p4reduce_lease_seconds",)] == 30
    for rank, port in ((0, 1), (1, 2)):
        labels = (
            ("job", "train"),
            ("port", str(port)),
            ("rank", str(rank)),
            ("switch", "switch"),
        )
        assert found[("p4reduce_rank_contributions_total", *labels)] == 1
        assert found[("p4reduce_rank_results_total", *labels)] == 1
    outcome = ("outcome", "round-completed"), ("switch", "switch")
    assert found[("p4reduce_switch_frames_total", *outcome)] >= 1
    assert found["p4reduce_events_total", ("kind", "job-running")] >= 1


def test_rules_and_dashboard_name_metrics_that_there_are(text: str) -> None:
    there = set(re.findall(r"^(p4reduce_\w+)", text, re.MULTILINE))
    there |= set(re.findall(r"^# TYPE (p4reduce_\w+)", text, re.MULTILINE))
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    asked = " ".join(
        [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        + [variable["query"] for variable in dashboard["templating"]["list"]]
        + re.findall(
            r"(?s)expr: (.*?)\n\s+(?:for|labels):", (MONITORING / "alerts.yml").read_text()
        )
    )
    names = set(re.findall(r"p4reduce_\w+", asked))
    assert len(names) > 12
    assert names <= there, f"not there: {names - there}"


def test_promtool_takes_them(text: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = [promtool, "check", "rules", str(MONITORING / "alerts.yml")]
    assert subprocess.run(rules, capture_output=True, check=False).returncode == 0


def test_every_rule_has_a_page_that_is_there() -> None:
    root = MONITORING.parent
    pages = re.findall(r"page: (\S+)", (MONITORING / "alerts.yml").read_text())
    assert len(pages) == 5
    for page in pages:
        path, _, anchor = page.partition("#")
        titles = re.findall(r"^#+ (.*)$", (root / path).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in anchors, page
