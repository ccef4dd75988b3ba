# SPDX-License-Identifier: Apache-2.0
"""The lessons' page: what it shows, what can be clicked, and that no other site can click."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")

import uvicorn
from p4reduce_lab.lesson import commands
from p4reduce_lab.lesson.lessons import LESSONS
from p4reduce_lab.lesson.page import LONGEST, LessonRun, make_app
from starlette.testclient import TestClient

TOKEN = "a token of this test"
DEADLINE = 60.0


def client(run: LessonRun) -> TestClient:
    return TestClient(make_app(run, TOKEN), base_url="http://127.0.0.1:8080")


def do(to: TestClient, command: str) -> dict[str, Any]:
    answer = to.post("/do", content=command, headers={"X-Lesson": TOKEN})
    assert answer.status_code == 200
    view: dict[str, Any] = answer.json()
    return view


@pytest.mark.parametrize("number", range(1, len(LESSONS) + 1))
def test_a_lesson_can_be_clicked_through(number: int) -> None:
    run = LessonRun(number)
    to = client(run)
    view = to.get("/view").json()
    for step, scene in enumerate(LESSONS[number - 1].scenes, 1):
        assert view["title"] == f"Step {step} of {len(LESSONS[number - 1].scenes)}"
        assert view["proposed"] == scene.command
        view = do(to, view["proposed"])
    assert (view["title"], view["proposed"]) == ("What was to be seen", "")
    assert view["text"] == LESSONS[number - 1].ending
    assert view["frames"] == []


def test_another_step_leaves_the_lesson() -> None:
    """As in the terminal, nothing is proposed then: frame 1 of the next step may be gone."""
    to = client(LessonRun(1))
    view = do(to, "frames")  # changes nothing
    assert view["proposed"] == "let 1"
    view = do(to, "drop 1")
    assert (view["title"], view["proposed"]) == ("On your own", "")
    assert "You have left the lesson's steps" in view["text"]
    assert [frame["number"] for frame in view["frames"]] == [2]
    view = do(to, "let 1")
    assert "there is no frame #1 on its way" in view["said"][-1]
    for command in ("restart", "lesson 1"):
        do(to, "drop 1")
        view = do(to, command)
        assert [frame["number"] for frame in view["frames"]] == [1, 2]
        assert view["proposed"] == "let 1"
    assert "Ctrl-C" in do(to, "quit")["said"][-1]
    assert do(to, "lesson 9")["said"][-1].startswith("there is no command 'lesson'")


def test_a_command_that_fails_half_way_leaves_the_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the terminal."""
    to = client(LessonRun(1))
    monkeypatch.setattr(commands, "MOST", 1)
    view = do(to, "go")
    assert view["said"][-1] == "after 1 frames there are more: frames circulate"
    assert (view["title"], view["proposed"]) == ("On your own", "")


def test_no_other_site_can_click() -> None:
    run = LessonRun(1)
    to = client(run)
    assert to.post("/do", content="let 1").status_code == 403
    for wrong in (b"wrong", b"\xe9"):
        assert to.post("/do", content="let 1", headers={b"X-Lesson": wrong}).status_code == 403
    other = TestClient(make_app(run, TOKEN), base_url="http://attacker.example")
    assert other.get("/").status_code == 400
    assert other.post("/do", content="let 1", headers={"X-Lesson": TOKEN}).status_code == 400
    long = to.post("/do", content="x" * (LONGEST + 1), headers={"X-Lesson": TOKEN})
    assert long.status_code == 413
    assert len(run.view()["frames"]) == 2
    page = to.get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert TOKEN in page.text


@pytest.fixture
def shown() -> Iterator[str]:
    """The page, really served; its address."""
    config = uvicorn.Config(make_app(LessonRun(3), TOKEN), port=0, log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + DEADLINE
        while not server.started:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(DEADLINE)


@pytest.mark.browser
def test_in_a_browser(shown: str, tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or browser is None:
        pytest.skip("chromium or chromedriver is not on PATH: apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        chromium.set_script_timeout(DEADLINE)
        chromium.get(shown)

        def text(selector: str) -> str:
            script = "return document.querySelector(arguments[0]).innerText"
            return str(chromium.execute_script(script, selector))

        def wait(selector: str, part: str) -> None:
            end = time.monotonic() + DEADLINE
            while part not in text(selector):
                assert time.monotonic() < end, text(selector)
                time.sleep(0.05)

        def click(selector: str) -> None:
            chromium.find_element("css selector", selector).click()

        for scene in LESSONS[2].scenes[:7]:
            wait("#next", scene.command)
            click("#next")
        wait("#said", "lost: #8")
        click("[data-command='let 7']")  # the same by the frame's own button
        wait("#said", "sent: #9")
        wait("#next", "let 9")
        click("#frames summary")
        wait("#frames details pre", "which aggregator of the job")
        chromium.find_element("css selector", "#place").send_keys("table admission")
        click("#stops button")
        wait("#breakpoints", "table admission")
        click("[data-command='let 9']")
        wait("#where", "holds frame 9 at table admission")
        click("#held summary")
        wait("#values", "agg.job = 7")
        click("[data-command='step']")
        wait("#where", "action grant")
        chromium.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text())
        found = chromium.execute_async_script("axe.run().then(arguments[0])")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
        chromium.save_screenshot(str(tmp_path / "lesson.png"))
    finally:
        chromium.quit()
