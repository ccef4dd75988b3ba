# SPDX-License-Identifier: Apache-2.0
"""The live page in headless Chromium: it follows what happens, is usable, and has no serious fault.

axe-core, whose rules are WCAG's, looks at the page as it is drawn.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_harness import (
    DEADLINE,
    RunningController,
    SwitchProcess,
    contribute,
    eventually,
)
from p4reduce_controller.settings import Http

from tools.headless_chromium import headless

Start = Callable[..., RunningController]

pytestmark = pytest.mark.browser
WIDTHS = (400, 800, 1400)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser for all tests."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        pytest.skip("chromium or chromedriver is not on PATH: apt-get install chromium-driver")
    with headless() as running:
        running.set_script_timeout(DEADLINE)
        yield running


def page_of(controller: RunningController) -> str:
    """The page's address."""
    assert controller.daemon.page is not None
    host, port = controller.daemon.page
    return f"http://{host}:{port}/"


def text(browser: Any, selector: str) -> str:
    """The text of the first element there; empty where there is none."""
    script = (
        "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''"
    )
    return str(browser.execute_script(script, selector))


@pytest.fixture
def shown(start: Start, switch: SwitchProcess, chromium: Any) -> RunningController:
    """A controller whose page the browser shows."""
    controller = start(switch, http=Http("127.0.0.1:0"))
    chromium.get(page_of(controller))
    eventually(lambda: text(chromium, ".badge") == "connected", "the page shows the switch")
    return controller


def stuck(controller: RunningController, switch: SwitchProcess, browser: Any) -> None:
    """Make a job that waits for rank 2, and wait until the page says so."""
    ranks = controller.running(switch, 3, slots=4)
    for rank in ranks[:2]:
        contribute(rank, 5)
    eventually(lambda: " s for rank 2, in 1 slot." in text(browser, ".waits"), "the page says it")


def test_it_follows_a_job(shown: RunningController, switch: SwitchProcess, chromium: Any) -> None:
    stuck(shown, switch, chromium)
    assert "1 job" in text(chromium, "#summary")
    assert text(chromium, ".missing") == "Slot 0 has 2 of 3, lacks rank 2."
    awaited = chromium.execute_script(
        "return [...document.querySelectorAll('.awaited')].map((rank) => rank.title)"
    )
    assert [title.split(",")[0] for title in awaited] == ["rank 2: attached"]
    before = text(chromium, ".waits")
    eventually(lambda: text(chromium, ".waits") != before, "the seconds go on")


def test_a_rank_that_is_lost(start: Start, switch: SwitchProcess, chromium: Any) -> None:
    controller = start(switch, http=Http("127.0.0.1:0"), lease=1.0)
    chromium.get(page_of(controller))
    ranks = controller.running(switch, 2)

    def seen() -> bool:
        ranks[0].heartbeat()
        return text(chromium, ".ranks .lost") == "1 lost"

    eventually(seen, "the page shows that rank 1 is lost")
    assert "rank 1" in text(chromium, ".waits")


def test_a_controller_that_comes_again(start: Start, switch: SwitchProcess, chromium: Any) -> None:
    first = start(switch, http=Http("127.0.0.1:0"))
    address = page_of(first)
    chromium.get(address)
    first.running(switch, 2)
    eventually(lambda: "1 job" in text(chromium, "#summary"), "the page shows the job")
    first.crash()
    eventually(lambda: "does not answer" in text(chromium, "#state"), "the page says so")
    start(switch, http=Http(address.removeprefix("http://").rstrip("/")))
    eventually(lambda: text(chromium, "#state") == "", "the page goes on")
    assert text(chromium, ".job .name") == "train"


def test_a_switch_that_comes_again(
    start: Start, mortal_switch: SwitchProcess, chromium: Any
) -> None:
    controller = start(mortal_switch, http=Http("127.0.0.1:0"))
    chromium.get(page_of(controller))
    mortal_switch.kill()
    eventually(lambda: text(chromium, ".badge").startswith("lost"), "the page shows it")
    mortal_switch.revive()
    eventually(lambda: text(chromium, ".badge") == "connected", "the page shows it again")


def colours(browser: Any, scheme: str) -> None:
    """Prefer light or dark."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def wide(browser: Any, pixels: int) -> None:
    """Make the window so wide."""
    size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_it_has_no_fault_that_axe_knows(
    shown: RunningController, switch: SwitchProcess, chromium: Any
) -> None:
    axe = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    stuck(shown, switch, chromium)
    chromium.execute_script(
        "for (const each of document.querySelectorAll('details')) each.open = 1"
    )
    chromium.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text())
    for scheme in ("light", "dark"):
        colours(chromium, scheme)
        for pixels in WIDTHS:
            wide(chromium, pixels)
            time.sleep(0.5)  # colours change by and by
            found = chromium.execute_async_script("axe.run().then(arguments[0])")["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], scheme


def test_nothing_is_wider_than_the_window(
    shown: RunningController, switch: SwitchProcess, chromium: Any
) -> None:
    stuck(shown, switch, chromium)
    for pixels in WIDTHS:
        wide(chromium, pixels)
        across = "return document.documentElement.scrollWidth"
        assert chromium.execute_script(across) <= pixels


def test_a_keyboard_reaches_everything_and_opens_it(
    shown: RunningController, switch: SwitchProcess, chromium: Any
) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    stuck(shown, switch, chromium)
    reached = []
    for _ in range(12):
        chromium.switch_to.active_element.send_keys(keys.TAB)
        focused = chromium.switch_to.active_element
        if focused.tag_name == "body":
            break
        reached.append(focused.text or focused.get_attribute("aria-label"))
        if reached[-1] == "Figures of each rank":
            focused.send_keys(keys.ENTER)
            eventually(lambda: "host2" in text(chromium, ".figures tbody"), "the figures show")
    assert reached[0] == "Skip to the jobs"
    for name in ("What became of the frames", "Figures of each rank", "What the colours mean"):
        assert name in reached, reached
    # A second later the page has drawn again, and what had the focus has it still.
    chromium.execute_script("document.querySelector('.figures summary').focus()")
    before = text(chromium, ".waits")
    eventually(lambda: text(chromium, ".waits") != before, "the page draws anew")
    assert chromium.switch_to.active_element.text == "Figures of each rank"
    assert chromium.execute_script("return document.querySelector('.figures').open")
