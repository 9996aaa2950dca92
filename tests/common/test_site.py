"""The site of docs/, built by ``mkdocs build --strict``: no warning, all interfaces and settings, nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

from simulations.experiment.experiment import all_settings
from simulations.search.settings import keys as search_settings
from tests.browser import open_browser

for needed in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: uv sync --group dev")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
FETCHING = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
"""Elements that a browser follows by itself, and by which attribute."""


def build(settings: Path, site: Path) -> subprocess.CompletedProcess[str]:
    of = ("--strict", "--config-file", str(settings), "--site-dir", str(site))
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme, about other programs
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *of], cwd=ROOT, env=quiet, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Elements(HTMLParser):
    """Anchors of a page, and what a browser fetches for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif (address := found.get(FETCHING.get(tag, ""))) is not None:
            self.fetched.append(address)


@pytest.fixture(scope="module")
def elements(site: Path) -> dict[str, Elements]:
    return {path.relative_to(site).as_posix(): Elements(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_the_reference_holds_exports_settings_and_configurations(site: Path, elements: dict[str, Elements]) -> None:
    """Exports by their defining module: what an import gives, against what griffe read."""
    anchors = set().union(*(one.anchors for page, one in elements.items() if page.startswith("reference/api/")))
    for package in PACKAGES:
        module = import_module(package)
        one_line = re.findall(r" import (\w+) as \1$", inspect.getsource(module), re.MULTILINE)
        things = [getattr(module, name) for name in getattr(module, "__all__", one_line)]
        paths = {
            f"{one.__module__}.{one.__qualname__}" for one in things if inspect.isclass(one) or inspect.isfunction(one)
        }
        assert not paths - anchors
    assert {"clients.external_app.app.answer_audits", "simulations.run.in_process.audit"} <= anchors
    for name, keys in (("settings", all_settings()), ("search_settings", search_settings())):
        text = (site / f"reference/{name}.html").read_text(encoding="utf-8")
        assert not [key for key in keys if f"<code>{key}</code>" not in text]
    listed = (site / "reference/configurations/index.html").read_text(encoding="utf-8")
    for path in (ROOT / "simulations/configs").glob("*.toml"):
        assert (site / f"reference/configurations/{path.stem}.html").is_file()
        assert f'href="{path.stem}.html"' in listed
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    found = {one["location"].partition("#")[0] for one in index}
    assert {"index.html", "concepts.html", "reference/settings.html", "reference/api/defenses/images.html"} <= found


@pytest.mark.slow
def test_links_lead_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path, elements: dict[str, Elements]) -> None:
    """Those to files outside docs/, too, which the code host shows under the same links. mkdocs checks those of Markdown only."""
    lost = []
    for page, one in elements.items():
        for link in one.links if page != "404.html" else ():  # which a server shows at any address
            path, _, anchor = link.partition("#")
            if ":" in path or link in ("", "#", "."):
                continue
            target = (site / page).parent / path if path else site / page
            name = (target / "index.html" if target.is_dir() else target).resolve().relative_to(site).as_posix()
            if name in elements and (not anchor or anchor in elements[name].anchors or anchor.startswith("__")):
                continue
            lost += [f"{page}: {link}"] if not (site / name).is_file() or name in elements else []
    assert not lost
    outside = {page: [link for link in one.fetched if "//" in link] for page, one in elements.items()}
    assert not {page: links for page, links in outside.items() if links}
    sheets = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*", sheets)


@pytest.mark.slow
def test_the_search_works_from_the_disk_and_wide_tables_scroll_on_a_phone(site: Path) -> None:
    asked: list[str] = []
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "tutorial.html").as_uri())
        page.locator("input.md-search__input").press_sequentially("VisualMixer")
        found = page.locator(".md-search-result__item a")
        found.first.wait_for()
        links = [link.get_attribute("href") or "" for link in found.all()]
        assert any("VisualMixer" in text for text in found.all_inner_texts())
        page = browser.new_page(viewport={"width": 400, "height": 900})
        for path in sorted((site / "results").glob("*.html")):  # which have the widest tables
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path.name
    assert links
    assert all(link.startswith(site.as_uri()) for link in links)
    assert not [address for address in asked if not address.startswith(("file:", "about:", "data:"))]
