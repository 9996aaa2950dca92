"""The Chromium of this machine, driven by playwright, for tests of pages as people see them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The path of an installed Chromium; a test that asks for it is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium on the PATH (looked for {', '.join(NAMES)})")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser; the test is skipped where playwright or Chromium is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: uv sync --group dev")
    path = chromium()
    with api.sync_playwright() as playwright:
        # Chromium refuses to run as root with its sandbox, and containers have little shared memory.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()
