# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium without a screen, driven by selenium."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def headless() -> Iterator[Any]:
    """Debian's Chromium without a screen."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        yield browser
    finally:
        browser.quit()


def resized(browser: Any, width: int) -> None:
    """Make the window as wide as that, and as high as the page then is."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    size["height"] = browser.execute_script("return document.documentElement.scrollHeight")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(1.5)  # it draws again each second
