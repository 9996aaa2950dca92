"""The pages that a newcomer reads first are short, and their sentences are."""

from __future__ import annotations

import re

from simulations.report.page.glossary import GLOSSARY
from tests.common.documents import ROOT

MOST_LINES = 100
"""Of README.md."""
MOST_WORDS = 40
"""Of a sentence."""
PAGES = ("README.md", "docs/read_a_report.md", "docs/findings.md", "docs/tutorial.md")


def sentences(page: str) -> list[str]:
    """The sentences of a page without its code: of each paragraph, list item and cell of a table."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[((?:[^\]\\]|\\.)*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    parts = re.split(r"\n\s*\n|\n(?=#|- |\d+\. |\|)|\|", text)
    return [one for part in parts for one in re.split(r"(?<=[.!?])\**\s+", " ".join(part.split())) if one]


def test_pages_are_short_and_so_are_their_sentences() -> None:
    for page in PAGES:
        found = sentences(page)
        assert len(found) > 10
        assert not [one for one in found if len(one.split()) > MOST_WORDS], page
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_page_and_the_documentation_have_one_glossary() -> None:
    page = (ROOT / "docs/read_a_report.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", page, re.MULTILINE) == list(GLOSSARY.items())
    assert len(GLOSSARY) <= 12
