"""Files outside docs/, and files that are no pages, on the site: pages link them by their path, as a code host reads it.

Nobody has to know an address of the repository: README.md and its like become pages of the site, any other file that a page
links becomes a page that shows it, and the links are turned to those.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    **{f"benchmarks/results/{path.name}": f"results/{path.name}" for path in ROOT.glob("benchmarks/results/*.md")},
}
"""File -> page that it becomes. A folder stands for the README in it."""
CONFIGURATIONS = "simulations/configs"
"""The folder whose files have pages of their own, by ``configuration_pages``."""
LINK = re.compile(r"(!?\[(?:[^\]\\]|\\.)*\]\()([^)\s#]*)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^ *(```|~~~)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of ``PAGES``, and one for each other file that a page links."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    for file in [file for file in files if file.is_documentation_page()]:
        for target in _targets(file.content_string, _source(file.src_uri)):
            uri = _page_of(target)
            if uri.startswith("files/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=_shown(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to files of the repository into links to the pages that show them."""
    source = _source(page.file.src_uri)

    def turned(found: re.Match[str]) -> str:
        before, path, anchor, after = found.group(1), found.group(2), found.group(3) or "", found.group(4)
        target = _target(path, source)
        if target is None:
            return found.group(0)
        uri = os.path.relpath(_page_of(target), Path(page.file.src_uri).parent)
        return f"{before}{uri}{anchor}{after}"

    return "\n".join(LINK.sub(turned, line) if prose else line for line, prose in _lines(markdown))


def _source(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    return {page: source for source, page in PAGES.items()}.get(uri, f"docs/{uri}")


def _targets(markdown: str, source: str) -> Iterator[str]:
    for line, prose in _lines(markdown):
        for found in LINK.finditer(line) if prose else ():
            if (target := _target(found.group(2), source)) is not None:
                yield target


def _target(path: str, source: str) -> str | None:
    """The file or folder of the repository that a link means; None for one that is none."""
    if not path or ":" in path:
        return None
    target = os.path.normpath(Path(source).parent / path)
    return target if (ROOT / target).exists() else None


def _page_of(target: str) -> str:
    """The page or picture of the site that stands for a file or folder of the repository."""
    if target in PAGES:
        return PAGES[target]
    if f"{target}/README.md" in PAGES:
        return PAGES[f"{target}/README.md"]
    if target == CONFIGURATIONS:
        return "reference/configurations/index.md"
    if target.startswith(f"{CONFIGURATIONS}/"):
        return f"reference/configurations/{Path(target).stem}.md"
    if target.startswith("docs/") and Path(target).suffix in (".md", ".png"):
        return target.removeprefix("docs/")
    return f"files/{target}.md"


def _shown(target: str) -> str:
    """A page with a file's text; of a folder, the names of what is in it."""
    path = ROOT / target
    if path.is_dir():
        names = "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir()) if one.name != "__pycache__")
        return f"# {target}/\n\n{names}\n"
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    return f"# {target}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each is prose: not within a fenced block."""
    inside = False
    for line in markdown.split("\n"):
        fence = FENCE.match(line) is not None
        yield line, not inside and not fence
        inside ^= fence
