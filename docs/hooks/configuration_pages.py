"""Pages of the example configurations: their first lines, which say what they show and cost, and their text."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).resolve().parents[2] / "simulations" / "configs"
INTRODUCTION = """# Configurations

Files that come with fedveil: `fedveil run --preset NAME` runs one from any folder (`fedveil search` takes `search.toml`). Their
first lines say what they show, what they cost and what to expect, or that this was not measured.

| name | shows |
| --- | --- |
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each configuration, and one that lists them."""
    lines = []
    for path in sorted(FOLDER.glob("*.toml")):
        head = header(path.read_text())
        lines.append(f"| [{path.stem}]({path.stem}.md) | {first_sentence(head)} |\n")
        text = f"# {path.name}\n\n{about(head)}\n\n```toml\n{body(path.read_text())}\n```\n"
        files.append(File.generated(config, f"reference/configurations/{path.stem}.md", content=text))
    index = INTRODUCTION + "".join(lines)
    files.append(File.generated(config, "reference/configurations/index.md", content=index))
    return files


def header(text: str) -> list[str]:
    """The comment that a file begins with, a paragraph for each thing that it says ("Shows: ...")."""
    found: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        said = line.removeprefix("#").removeprefix(" ")
        if found and said.startswith("  "):
            found[-1] += f" {said.strip()}"
        else:
            found.append(said.strip())
    return found


def body(text: str) -> str:
    """A file without the comment that it begins with."""
    lines = text.splitlines()
    return "\n".join(lines[len(_leading(lines)) :]).strip()


def about(head: list[str]) -> str:
    """The header as a list, what each line is about in bold."""
    marked = []
    for said in head:
        what, colon, rest = said.partition(": ")
        known = colon and len(what.split()) <= 4
        marked.append(f"- **{what}:** {_escaped(rest)}" if known else f"- {_escaped(said)}")
    return "\n".join(marked)


def first_sentence(head: list[str]) -> str:
    """What a configuration shows, as a cell of a table."""
    shows = next((said for said in head if said.startswith("Shows: ")), head[0] if head else "")
    return _escaped(re.split(r"(?<!al)\. ", shows.removeprefix("Shows: "))[0].rstrip(".")).replace("|", "\\|")


def _leading(lines: list[str]) -> list[str]:
    end = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:end]


def _escaped(text: str) -> str:
    """Text that Markdown takes as it is: ``*`` and ``<`` are no marks."""
    return text.replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_") if "`" not in text else text
