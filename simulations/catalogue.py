"""The output of ``fedveil list``: names, parameters with defaults, assumptions, and sources."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from attacks.spec import ATTACKS
from clients.data.datasets import dataset_names
from clients.models.classifiers import model_names
from clients.models.split.split_models import split_model_names
from clients.wire.schema import Settings, allowed, fields_of
from defenses.base import DEFENSES
from defenses.spec import settings_of
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import all_settings, owners, scenarios
from simulations.external_app.recorded.settings import AttackSettings
from simulations.search.settings import Search
from simulations.settings.presets import described


def _scenarios() -> Iterator[tuple[str, ...]]:
    for name, scenario in scenarios().items():
        yield name, scenario.about, f"the server observes: {', '.join(kind.plural for kind in scenario.kinds)}"


def _defenses() -> Iterator[tuple[str, ...]]:
    for name, cls in DEFENSES.items():
        adaptive = ", ".join(cls.adaptive_attacks) or "none yet: untested against an adaptive attacker"  # type: ignore[attr-defined]
        yield (
            name,
            f"{_first_line(cls)} Protects: {cls.stage}.",  # type: ignore[attr-defined]
            _signature(name, cls),
            f"adaptive attacks: {adaptive}",
            f"source: {cls.source}",  # type: ignore[attr-defined]
        )


def _attacks() -> Iterator[tuple[str, ...]]:
    for name, cls in ATTACKS.items():
        knows, source = f"the server knows: {cls.threat}", f"source: {cls.source}"  # type: ignore[attr-defined]
        shadows = ["shadow models: num_shadows, trained by the server, for each pipeline"]
        trained = shadows if cls.profile.trains_shadows else []  # type: ignore[attr-defined]
        yield name, _first_line(cls), _signature(name, cls), knows, *trained, source


def _models() -> Iterator[tuple[str, ...]]:
    yield from model_names().items()
    yield from ((name, f"split: {about}") for name, about in split_model_names().items())


def _settings() -> Iterator[tuple[str, ...]]:
    everywhere = len(scenarios())
    for key, spec in all_settings().items():
        of = owners(key)
        name, *lines = _setting(key, spec, f"{', '.join(of)}: " if len(of) < everywhere else "")
        yield (name, *lines, *_usual(key))


def _declared(settings: type[Settings]) -> Iterator[tuple[str, ...]]:
    """The settings of another command than ``fedveil run``."""
    yield from (_setting(key, spec) for key, spec in fields_of(settings).items())


def _usual(key: str) -> Iterator[str]:
    """What scenarios have in place of a default."""
    for name, scenario in scenarios().items():
        for whose, usual in ((name, scenario.usual), (f"{name}, tables", scenario.usual_on_tables)):
            if key in usual:
                yield f"default of {whose}: {usual[key]!r}"


def _setting(key: str, spec: FieldInfo, whose: str = "") -> tuple[str, ...]:
    range_of = f" ({allowed(spec)})" if allowed(spec) else ""
    return key, f"{whose}{spec.description}{range_of}", f"default: {spec.default!r}"


def _signature(name: str, cls: Any) -> str:
    shown = []
    settings = settings_of(cls)
    for spec in (field for field in fields(cls) if field.name in settings):
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        shown.append(spec.name if default is MISSING else f"{spec.name}={default!r}")
    return f"{name}({', '.join(shown)})"


def _first_line(cls: Any) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]


SECTIONS: dict[str, Callable[[], Iterable[tuple[str, ...]]]] = {
    "scenarios": _scenarios,
    "defenses": _defenses,
    "attacks": _attacks,
    "datasets": lambda: dataset_names().items(),
    "models": _models,
    "settings": _settings,
    "presets": described,
    "search": lambda: _declared(Search),
    "attack": lambda: _declared(AttackSettings),
}
"""What ``fedveil list`` shows -> its entries, each a name and lines about it."""


def print_section(console: Terminal, section: str) -> None:
    """Print one of ``SECTIONS``."""
    entries = list(SECTIONS[section]())
    console.print(f"\n[bold]{section}[/bold]")
    if not console.is_terminal:
        # Tables are for eyes; a pipe gets every line whole.
        for name, *details in entries:
            console.say("\n    ".join([name, *details]))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, *details in entries:
        table.add_row(escape(name), escape("\n".join(details)))
    console.print(table)
