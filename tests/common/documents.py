"""Pages of the repository, and the fenced blocks in them."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?:^<!-- illustration: (?P<why>.+) -->\n)?^ *```(?P<language>\w+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


def pages() -> Iterator[str]:
    folders = ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/results/*.md")
    found = [path for folder in folders for path in ROOT.glob(folder)]
    yield from sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str, language: str, illustrations: bool = False) -> list[str]:
    """Texts of a page's blocks of a language, without those that are marked as illustrations, or these alone."""
    found = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    return [one["text"] for one in found if one["language"] == language and (one["why"] is not None) == illustrations]
