"""What a person reads on a page, line by line, and files of it that a person approved.

``APPROVE=1 pytest tests/simulations/report/page/test_view.py`` writes the files anew; read their difference before it is committed.
"""

import os
import re
from collections.abc import Collection
from html.parser import HTMLParser
from pathlib import Path

from tests.simulations.report.report_run import VOID

FOLDER = Path(__file__).parent / "approved"
INLINE = {"a", "abbr", "b", "button", "code", "em", "i", "span", "strong", "sub", "sup"}
SENTENCE = re.compile(r"(?<=[.]) (?=[A-Z†])")


class _Reader(HTMLParser):
    """Lines of text: a heading, a sentence, a row of a table, or what a chart says of its marks."""

    def __init__(self, only: Collection[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._only, self._inside, self._open = only, not only or "top" in only, list[str]()
        self._text, self._cells = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "img":
            self._add(f"[picture] {known.get('alt')}")
        if tag in VOID:
            return
        self._open.append(tag)
        if tag == "section":
            self._end()
            self._inside = not self._only or str(known.get("id")) in self._only
            self._add(f"## {known.get('id')}")
        elif tag == "svg":
            self._end()
            self._add(f"[chart] {known.get('aria-label') or ''}")
        elif tag == "small" and {"td", "th"} & set(self._open):
            self._text += "; "
        elif not {"td", "th", "svg"} & set(self._open[:-1]) and tag not in INLINE:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            self._cells.append(" ".join(self._text.split()).removeprefix("; ").replace(" ;", ";"))
            self._text = ""
        elif tag == "tr":
            self._add(" | ".join(self._cells))
            self._cells = []
        elif tag == "title" and "svg" in self._open:
            self._add("  " + " ".join(self._text.split()))
            self._text = ""
        elif tag not in INLINE and not {"td", "th", "svg"} & set(self._open):
            self._end()
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script", "nav"} & set(self._open) and ("svg" not in self._open or self._open[-1] == "title"):
            self._text += data

    def _end(self) -> None:
        for sentence in SENTENCE.split(" ".join(self._text.split())):
            self._add(sentence)
        self._text = ""

    def _add(self, line: str) -> None:
        if line and self._inside:
            self.lines.append(line)


def lines_of(page: Path, only: Collection[str] = ()) -> list[str]:
    """Text of some sections of a page, by id ("top": before the first)."""
    reader = _Reader(only)
    reader.feed(page.read_text(encoding="utf-8").replace(str(page.parent), "FOLDER"))
    return reader.lines


def assert_approved(kind: str, page: Path, only: Collection[str] = ()) -> None:
    """Compares a page with its approved text, or approves it if the environment says APPROVE=1."""
    file, found = FOLDER / f"{kind}.txt", lines_of(page, only)
    if os.environ.get("APPROVE") == "1":
        FOLDER.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    assert found == file.read_text(encoding="utf-8").splitlines(), f"{kind}: read the difference, then APPROVE=1"
