"""Pages of what ``fedveil list`` lists and no docstring holds, and of metrics, from the same source."""

from __future__ import annotations

from collections import defaultdict

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from attacks.metrics.registry import METRICS
from clients.wire.schema import Settings, allowed, fields_of
from simulations.catalogue.catalogue import SECTIONS
from simulations.experiment.experiment import all_settings, owners
from simulations.experiment.scenario import scenarios
from simulations.external_app.recorded.arguments.settings import AttackSettings
from simulations.protect.settings import ProtectSettings
from simulations.search.settings import Search

HEAD = "| setting | default | meaning | allowed |\n| --- | --- | --- | --- |\n"
COMMANDS: dict[str, type[Settings]] = {"search": Search, "attack": AttackSettings, "protect": ProtectSettings}
"""Commands with settings of their own."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    pages = {
        "settings": settings(),
        **{f"{command}_settings": of_command(command) for command in COMMANDS},
        "data_and_models": listed("Data sets and models", {"Data sets": "datasets", "Models": "models"}),
        "defenses": listed("Defences", {"By name": "defenses"}),
        "attacks": listed("Attacks", {"By name": "attacks"}),
        "metrics": metrics(),
    }
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


def of_command(command: str) -> str:
    """Settings of another command."""
    rows = "".join(_row(key, spec) for key, spec in fields_of(COMMANDS[command]).items())
    return f"# Settings of fedveil {command}\n\nAs `fedveil list {command}` prints them: keys of `-s key=value`.\n\n{HEAD}{rows}"


def listed(title: str, sections: dict[str, str]) -> str:
    """Sections of ``fedveil list``, an entry a row."""
    text = f"# {title}\n\nAs `fedveil list {next(iter(sections.values()))}` prints them.\n"
    for heading, section in sections.items():
        rows = "".join(f"| `{name}` | {'<br>'.join(map(_cell, lines))} |\n" for name, *lines in SECTIONS[section]())
        text += f"\n## {heading}\n\n| name | about |\n| --- | --- |\n{rows}"
    return text


def metrics() -> str:
    """What rows hold, by the metrics' declarations."""
    text = "# Metrics\n\nNames in `rows.jsonl`. The worst value of a row is the one that leaks most.\n\n"
    text += "| name | on the page | leaks more | interval of a row | interval over seeds |\n| --- | --- | --- | --- | --- |\n"
    for one in METRICS.values():
        more = "when higher" if one.higher_leaks else "when lower"
        text += f"| `{one.name}` | {_cell(one.label or one.name)} | {more} | {one.interval.value} | {one.over_seeds.value} |\n"
    return text


def _row(key: str, spec: FieldInfo) -> str:
    default = "none" if spec.default == "" else f"`{_cell(str(spec.default))}`"
    return f"| `{key}` | {default} | {_cell(str(spec.description))} | {_cell(allowed(spec))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
