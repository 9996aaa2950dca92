from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import open_browser
from tests.simulations.report.every_page import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LOOKS = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]
UNFOLDED = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
OPTIONS = "{ resultTypes: ['violations', 'incomplete'], rules: { 'target-size': { enabled: true } } }"
"""All rules that axe has on by default, and the one of WCAG 2.2 that it leaves off."""
Checker = Callable[["Page"], dict[str, Any]]
Opener = Callable[[Path], "Page"]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def axe() -> Checker:
    base = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed: uv sync --group dev")

    def check(page: Page) -> dict[str, Any]:
        page.evaluate("(script) => { if (!window.axe) (0, eval)(script); }", base.AXE_SCRIPT)
        found: dict[str, Any] = page.evaluate(f"axe.run({OPTIONS})")
        return found

    return check


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    context = browser.new_context(bypass_csp=True)

    def show(path: Path) -> Page:
        page = context.new_page()
        page.goto(path.as_uri())
        return page

    yield show
    context.close()


def told(found: dict[str, Any], what: str) -> list[str]:
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}\n    {' '.join(map(str, one['target']))}: {one['html'][:200]}\n"
        f"    {' '.join(one['failureSummary'].split())}\n    {what}"
        for rule in found["violations"]
        for one in rule["nodes"]
    ]


def undecided(found: dict[str, Any]) -> list[str]:
    return [
        f"contrast of {one['html'][:200]}: {one['any'][0]['message']}"
        for rule in found["incomplete"]
        if rule["id"] == "color-contrast"
        for one in rule["nodes"]
        if not one["html"].startswith("<text") and one["any"][0]["data"]["messageKey"] != "shortTextContent"
    ]


def test_axe_finds_nothing_wrong(tmp_path: Path, opened: Opener, axe: Checker, subtests: pytest.Subtests) -> None:
    for name, make in PAGES.items():
        path = make(tmp_path / name)
        with subtests.test(msg=name):
            page = opened(path)
            page.evaluate(UNFOLDED)
            wrong = []
            for width, scheme in LOOKS:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                found = axe(page)
                wrong += told(found, f"{path}, {width} pixels, {scheme}") + undecided(found)
                if page.evaluate("document.documentElement.scrollWidth") > width:
                    wrong.append(f"{path} scrolls sideways at {width} pixels")
            page.close()
            assert not wrong, "\n" + "\n".join(wrong)


def test_axe_finds_nothing_wrong_in_a_page_that_is_used(tmp_path: Path, opened: Opener, axe: Checker) -> None:
    page = opened(PAGES["federated"](tmp_path / "run"))
    page.evaluate(UNFOLDED)
    page.locator("#cost th button").first.click()
    assert page.locator("#cost th[aria-sort]").count() == 1
    page.locator(".strips .tile img").first.press("Enter")
    assert page.locator(".tiles.large").is_visible()
    page.locator(".tiles.large .tile img").first.press("Escape")
    page.locator("#attacks input.filter").first.fill("Mixer")
    assert page.locator("tr[hidden]").count()
    wrong = told(axe(page), "in use")
    assert not wrong, "\n" + "\n".join(wrong)
