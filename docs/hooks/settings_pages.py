"""Pages of what ``fedveil list`` lists and no docstring holds, and of metrics, from the same source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from attacks.metrics.registry import METRICS
from clients.wire.schema import allowed
from simulations.catalogue import SECTIONS
from simulations.experiment.experiment import all_settings, owners, scenarios

HEAD = "| setting | default | meaning | allowed |\n| --- | --- | --- | --- |\n"
LISTED = {
    "search_settings": ("Settings of fedveil search", ["search"]),
    "attack_settings": ("Settings of fedveil attack", ["attack"]),
    "data_and_models": ("Data sets and models", ["datasets", "models"]),
    "defenses": ("Defences", ["defenses"]),
    "attacks": ("Attacks", ["attacks"]),
}
"""Page -> its title, and what it has of ``fedveil list``."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    pages = {name: listed(*of) for name, of in LISTED.items()}
    pages |= {"settings": settings(), "metrics": metrics()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def settings() -> str:
    """Settings of ``fedveil run``, by the scenarios that have them."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, spec in all_settings().items():
        groups[tuple(owners(key))].append(_row(key, spec))
    text = "# Settings\n\nOf `fedveil run`, as `fedveil list settings` prints them: keys of a TOML file, and of `-s key=value`.\n"
    everywhere = len(scenarios())
    for of, rows in sorted(groups.items(), key=lambda group: -len(group[0])):
        title = "All scenarios" if len(of) == everywhere else ", ".join(of).capitalize()
        text += f"\n## {title}\n\n{HEAD}{''.join(rows)}"
    return text


def listed(title: str, sections: Iterable[str]) -> str:
    """Sections of ``fedveil list``, an entry a row."""
    text = f"# {title}\n"
    for section in sections:
        rows = "".join(f"| `{name}` | {'<br>'.join(map(_cell, lines))} |\n" for name, *lines in SECTIONS[section]())
        text += f"\nAs `fedveil list {section}` prints them:\n\n| name | about |\n| --- | --- |\n{rows}"
    return text


def metrics() -> str:
    """What rows hold, by the metrics' declarations."""
    text = "# Metrics\n\nNames in `rows.jsonl`, which has the worst value of a row beside its mean.\n\n"
    text += "| name | on the page | worst value | interval of a row | interval over seeds |\n| --- | --- | --- | --- | --- |\n"
    for one in METRICS.values():
        worst = "highest" if one.higher_leaks else "lowest"
        text += f"| `{one.name}` | {_cell(one.label or one.name)} | {worst} | {one.interval.value} | {one.over_seeds.value} |\n"
    return text


def _row(key: str, spec: FieldInfo) -> str:
    default = "none" if spec.default == "" else f"`{_cell(str(spec.default))}`"
    return f"| `{key}` | {default} | {_cell(str(spec.description))} | {_cell(allowed(spec))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
