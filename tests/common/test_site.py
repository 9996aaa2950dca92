"""The site of docs/, built by ``mkdocs build --strict``: no warning, all interfaces and settings, nothing from elsewhere."""

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from clients.wire.schema import fields_of
from simulations.experiment.experiment import all_settings
from simulations.search.settings import Search

for needed in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: uv sync --group dev")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
FETCHED = re.compile(
    r"<(?:img|script|iframe|link|source|object)\b[^>]*?\b(?:src|href|data)=[\"']?([^\"'\s>]*//[^\"'\s>]*)"
)
"""Addresses that a browser follows by itself."""


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


@pytest.fixture(scope="module")
def texts(site: Path) -> dict[str, str]:
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


@pytest.mark.slow
def test_the_reference_holds_exports_settings_and_configurations(site: Path, texts: dict[str, str]) -> None:
    """Exports by their defining module: what an import gives, against what griffe read."""
    anchors = {
        one for page in texts if page.startswith("reference/api/") for one in re.findall(r'\bid="(.*?)"', texts[page])
    }
    for package in PACKAGES:
        module = import_module(package)
        one_line = re.findall(r" import (\w+) as \1$", inspect.getsource(module), re.MULTILINE)
        things = [getattr(module, name) for name in getattr(module, "__all__", one_line)]
        paths = {f"{x.__module__}.{x.__qualname__}" for x in things if inspect.isclass(x) or inspect.isfunction(x)}
        assert not paths - anchors
    assert {"clients.external_app.app.answer_audits", "simulations.run.in_process.audit"} <= anchors
    for name, keys in (("settings", all_settings()), ("search_settings", fields_of(Search))):
        assert not [key for key in keys if f"<code>{key}</code>" not in texts[f"reference/{name}.html"]]
    for path in (ROOT / "simulations/configs").glob("*.toml"):
        assert f"reference/configurations/{path.stem}.html" in texts
        assert f'href="{path.stem}.html"' in texts["reference/configurations/index.html"]
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    found = {one["location"].partition("#")[0] for one in index}
    assert {"index.html", "concepts.html", "reference/settings.html", "reference/api/defenses/images.html"} <= found


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: Path, texts: dict[str, str]) -> None:
    assert FETCHED.findall('<script defer src="https://elsewhere/code.js">') == ["https://elsewhere/code.js"]
    assert not {page: links for page, text in texts.items() if (links := FETCHED.findall(text))}
    sheets = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*", sheets)
