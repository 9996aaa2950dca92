import base64
import hashlib
import re
from pathlib import Path

import pytest
from markupsafe import Markup

from simulations.report.page.templates import render
from simulations.report.section import Content, Section, sections
from tests.simulations.report.approved_text import FOLDER, assert_approved, lines_of
from tests.simulations.report.every_page import PAGES
from tests.simulations.report.report_run import Page

Pages = dict[str, Path]
KINDS = {
    "federated": ("top", "glance", "caveats", "cost", "plane", "curves", "control"),
    "members": ("glance", "membership", "representatives"),
    "doubts": ("top", "glance", "caveats", "cost", "control", "attacks", "failures", "cards"),
    "dp_audit": ("glance", "cost", "audited_epsilon"),
    "updates": ("top", "glance", "caveats", "cost", "configuration"),
    "adversaries": ("glance", "active", "aggregates", "pictures"),
    "external_app": ("top", "glance1", "recorded2", "audited3"),
    "split": ("glance", "split", "control", "pictures", "configuration"),
    "outsourced": ("glance", "outsourced", "control"),
    "inference": ("glance", "inference"),
    "empty": (),
}
"""Page -> the sections that are approved: "top" is all before the first, nothing means all of them."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    folder = tmp_path_factory.mktemp("pages")
    return {name: make(folder / name) for name, make in PAGES.items()}


def test_each_kind_of_page_reads_as_it_was_approved(pages: Pages, subtests: pytest.Subtests) -> None:
    for kind, only in KINDS.items():
        with subtests.test(msg=kind):
            assert_approved(kind, pages[kind], only)


def test_approved_pages_show_every_section_and_are_short_enough_to_be_read(pages: Pages) -> None:
    lines = {kind: lines_of(pages[kind], only) for kind, only in KINDS.items()}
    shown = {re.sub(r"## (\w+?)\d*$", r"\1", one) for found in lines.values() for one in found}
    assert {one.name for one in sections()} <= shown
    assert {kind: len(found) for kind, found in lines.items() if len(found) > 150} == {}
    assert {file.stem for file in FOLDER.iterdir()} == {*KINDS, "comparison"}


def test_every_page_is_well_formed_and_loads_nothing(pages: Pages, subtests: pytest.Subtests) -> None:
    for path in pages.values():
        with subtests.test(msg=f"{path.parent.name}/{path.name}"):
            source = path.read_text(encoding="utf-8")
            page = Page(source)
            assert page.open == []
            assert len(page.text.split()) <= 6_000, "too long to be read, tooltips and folds included"
            ids = [known["id"] for _, known in page.tags if "id" in known]
            assert len(ids) == len(set(ids))
            assert not re.search(r"@import|url\(|<link|<iframe|src=\"(?!data:image/png;base64,)", source)
            assert not [key for _, known in page.tags for key in known if key.startswith("on")]
            for link in (str(known["href"]) for tag, known in page.tags if tag == "a"):
                file, _, place = link.partition("#")
                target = path.parent / file if file else path
                assert target.is_file() or path.name == "comparison.html", link
                assert not place or f'id="{place}"' in target.read_text(encoding="utf-8"), link
            # The only script is the one that the policy names.
            (script,) = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
            policy = str(re.findall(r'Content-Security-Policy"\s+content="([^"]*)"', source)[0])
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert policy.startswith("default-src 'none'")
            assert f"script-src 'sha256-{digest}'" in policy
            assert source.count("<script") == 1
            # What scrolls has a name of its own and is reached by keys; it is the parent of every table.
            boxes = [known for _, known in page.tags if known.get("role") == "region"]
            assert len({box["aria-label"] for box in boxes}) == len(boxes)
            assert all(box["tabindex"] == "0" and str(box["class"]).startswith("scroll") for box in boxes)
            assert len([tag for tag, _ in page.tags if tag == "caption"]) == len(boxes)
            assert not re.search(r"<th[^>]*>\s*</th>", source)
            for known in (known for tag, known in page.tags if tag == "a" and known.get("class") == "term"):
                assert str(known["title"]) in " ".join(page.sections["glossary"].split())


def test_a_section_shows_markup_as_it_is_and_text_as_text() -> None:
    shown = Content([Markup("<p>mine</p>"), "a < b"])
    page = render("sections/section.html", {"section": Section("mine", "Mine", lambda *_: shown), "shown": shown})
    assert "<p>mine</p>" in page
    assert "a &lt; b" in page
