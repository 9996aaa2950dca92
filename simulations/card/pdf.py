"""A card as a PDF: its Markdown as a page of HTML that fetches nothing, printed by an installed Chromium."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from markdown_it import MarkdownIt

from simulations.report.page.templates import read
from simulations.settings.errors import ConfigError

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-pdf-header-footer", "--print-to-pdf-no-header")
"""Without header and footer, which hold the path of the page."""
SECONDS, INSTEAD = 120, "name a file that ends in .md"


def require_browser() -> str:
    """The path of an installed Chromium; ``ConfigError`` where there is none."""
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    raise ConfigError(f"--out: a PDF needs Chromium, and none of {', '.join(NAMES)} is on the PATH; {INSTEAD}")


def to_html(card: str) -> str:
    """A page of HTML of the card without its metadata."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(card.partition("\n---\n")[2])
    return read("card.html").replace("{body}", body)


def to_pdf(page: str, browser: str) -> bytes:
    """Print a page of HTML; ``ConfigError`` where Chromium makes no PDF of it."""
    with TemporaryDirectory(prefix="fedveil-card-") as folder:
        source, made = Path(folder, "card.html"), Path(folder, "card.pdf")
        source.write_text(page, encoding="utf-8")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root, Chromium refuses to run with its sandbox
        words = [browser, *FLAGS, *root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", source.as_uri()]
        try:
            subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=True)
            return made.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"--out: {browser} made no PDF: {error}; {INSTEAD}") from error
