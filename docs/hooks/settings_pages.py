"""Pages of what ``fedveil list`` lists and no docstring holds: settings, data sets and models, from the same source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from clients.data.datasets import dataset_names
from clients.models.classifiers import model_names
from clients.models.split.split_models import split_model_names
from clients.wire.schema import allowed, fields_of
from simulations.experiment.experiment import all_settings, owners, scenarios
from simulations.search.settings import Search

HEAD = "| setting | default | meaning | allowed |\n| --- | --- | --- | --- |\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for name, text in {"settings": settings(), "search_settings": searching(), "data_and_models": named()}.items():
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


def searching() -> str:
    """Settings of ``fedveil search``."""
    rows = "".join(_row(key, spec) for key, spec in fields_of(Search).items())
    return f"# Settings of a search\n\nOf `fedveil search`, as `fedveil list search` prints them.\n\n{HEAD}{rows}"


def named() -> str:
    """Names that ``dataset`` and ``model`` take."""
    text = (
        "# Data sets and models\n\nNames that the settings `dataset` and `model` take, as `fedveil list` prints them.\n"
    )
    parts: Iterable[tuple[str, Mapping[str, str]]] = (
        ("Data sets", dataset_names()),
        ("Models", model_names()),
        ("Models of split learning", split_model_names()),
    )
    for title, names in parts:
        rows = "".join(f"| `{name}` | {_cell(about)} |\n" for name, about in names.items())
        text += f"\n## {title}\n\n| name | what it is |\n| --- | --- |\n{rows}"
    return text


def _row(key: str, spec: FieldInfo) -> str:
    default = "none" if spec.default == "" else f"`{_cell(str(spec.default))}`"
    return f"| `{key}` | {default} | {_cell(str(spec.description))} | {_cell(allowed(spec))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
