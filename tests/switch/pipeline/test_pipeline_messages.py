# SPDX-License-Identifier: Apache-2.0
"""assert, assume and log_msg (programs/messages.p4)."""

from __future__ import annotations

import logging

import pytest
from p4reduce_switch.messages import log_msg
from pipeline_programs import load

pytestmark = pytest.mark.usefixtures("engine")


def test_failed_assertions_drop_and_count(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = load("messages")
    assert pipeline.process(0, b"\0\0tail") == [(1, b"\0\0tail")]
    assert caplog.messages == []
    for sent in (b"\1\0", b"\2\0", b"\0\1"):
        assert pipeline.process(0, sent) == []
    assert caplog.messages == [
        "assert failed at messages.p4:17",
        "assume failed at messages.p4:18",
        "assert failed at messages.p4:26",
    ]
    assert pipeline.stats.dropped_assertion == 3


def test_log_msg(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pipeline = load("messages")
    assert pipeline.process(4, b"\3\xff") == [(1, b"\3\xff")]
    assert caplog.messages == ["plain", "x = 3, sum = 2, port 4"]


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [("{} {}", (1,), "1 {}"), ("{}", (1, 2), "1"), ("%s{}%d", (-5,), "%s-5%d"), ("", (), "")],
)
def test_too_few_and_too_many_values(
    caplog: pytest.LogCaptureFixture, text: str, values: tuple[int, ...], wanted: str
) -> None:
    caplog.set_level(logging.INFO)
    log_msg(text, values)
    assert caplog.messages == [wanted]
