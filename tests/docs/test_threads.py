# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks: one helper starts them, tells of their end, and the architecture lists all."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from functools import cache

import pytest
from p4reduce_common.threads import new_thread, watch_task
from test_architecture import ARCHITECTURE, FILES, ROOT

DEADLINE = 60.0
PACKAGES = ("common/", "native/", "worker/", "controller/", "switch/", "lab/")
SOURCES = [file for file in FILES if file.endswith(".py") and file.startswith(PACKAGES)]
HELPER = "common/p4reduce_common/threads.py"
# The second one hands its result, or its exception, to the caller, who waits for it.
STARTERS = {HELPER, "worker/p4reduce/session/threaded_call.py"}
BARE = {"Thread", "Timer", "start_new_thread"}
STARTS = {"new_thread", "ThreadPoolExecutor", "create_task", "ensure_future"}


@cache
def calls(file: str) -> frozenset[str]:
    """The last part of the name of each function that a file calls or class that it extends."""
    return frozenset(_calls(file))


def _calls(file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        named = [node.func] if isinstance(node, ast.Call) else getattr(node, "bases", [])
        for one in named:
            if isinstance(one, ast.Name | ast.Attribute):
                yield one.id if isinstance(one, ast.Name) else one.attr


def test_nothing_else_starts_threads() -> None:
    assert {file for file in SOURCES if BARE & calls(file)} == STARTERS


def test_the_architecture_lists_all_that_starts_threads_or_tasks() -> None:
    section = ARCHITECTURE.read_text().partition("\n## Threads\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([\w/]+\.py)`", section))
    starting = {file for file in SOURCES if STARTS & calls(file)} - {HELPER}
    missing = [file for file in starting if not any(file.endswith(f"/{one}") for one in listed)]
    assert missing == []


@pytest.mark.parametrize("error", [ValueError("what"), KeyError(3), MemoryError()], ids=repr)
def test_the_owner_hears_the_cause(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []

    def work(number: int) -> None:
        assert number == 5
        raise error

    thread = new_thread(work, "worker-5", heard.append, args=(5,))
    thread.start()
    thread.join(DEADLINE)
    assert heard == [error]
    assert "thread worker-5 ended by an exception" in caplog.text


@pytest.mark.parametrize("error", [None, SystemExit(3)], ids=["in order", "exit"])
def test_an_end_in_order_is_not_logged(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[BaseException] = []

    def work() -> None:
        if error is not None:
            raise error

    thread = new_thread(work, "quiet", heard.append)
    thread.start()
    thread.join(DEADLINE)
    assert caplog.text == ""
    assert heard == ([] if error is None else [error])  # its owner has no thread any more


def test_an_owner_that_fails_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def owner(_: BaseException) -> None:
        raise RuntimeError("deaf")

    thread = new_thread(threading.Lock().release, "one", owner)
    thread.start()
    thread.join(DEADLINE)
    assert "its owner could not be told" in caplog.text
    assert "deaf" in caplog.text


def test_tasks(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []

    async def fails() -> None:
        raise OSError("gone")

    async def main() -> None:
        failing = asyncio.create_task(fails(), name="pulse")
        cancelled = asyncio.create_task(asyncio.sleep(DEADLINE))
        for task in (failing, cancelled):
            watch_task(task, heard.append)
        cancelled.cancel()
        await asyncio.wait({failing, cancelled})
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [str(error) for error in heard] == ["gone"]
    assert "task pulse ended by an exception" in caplog.text
