"""The folder of an app: its pyproject.toml, and the Python files that its two entry points import."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from simulations.console.command_line import read_toml
from simulations.settings.errors import ConfigError


@dataclass(frozen=True)
class Module:
    """A Python file of the app, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @cached_property
    def imported(self) -> dict[str, str]:
        """Each name that an import binds, anywhere in the file -> its full dotted name."""
        bound: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                tops = ((alias, alias.name.partition(".")[0]) for alias in node.names)
                bound |= {alias.asname or top: alias.name if alias.asname else top for alias, top in tops}
            elif isinstance(node, ast.ImportFrom):
                bound |= {alias.asname or alias.name: f"{self.source_of(node)}.{alias.name}" for alias in node.names}
        return bound

    def source_of(self, node: ast.ImportFrom) -> str:
        """The module that an import names, with the dots of a relative one resolved."""
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


class Start(NamedTuple):
    """The call that starts the rounds: the variable before ``.start(`` or "", file and line, indentation."""

    strategy: str
    where: str
    indent: int


@dataclass(frozen=True)
class Project:
    """An app as its files describe it: its entry points (``module:object``), run configuration, and the files that they import.

    Keys of tables in ``run_config`` are joined by dots.
    """

    folder: Path
    server_app: str
    client_app: str
    run_config: Mapping[str, Any]
    modules: Mapping[str, Module]

    @property
    def client(self) -> Module | None:
        """The file of the ClientApp."""
        return self.modules.get(self.client_app.partition(":")[0])

    @property
    def server(self) -> Module | None:
        """The file of the ServerApp."""
        return self.modules.get(self.server_app.partition(":")[0])

    @cached_property
    def start(self) -> Start | None:
        """The call of ``.start(`` in the file of the ServerApp that is given a grid; None where there is none."""
        server = self.server
        for node in ast.walk(server.tree) if server else ():
            if (
                server
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "start"
            ):
                if "grid" not in {keyword.arg for keyword in node.keywords} and len(node.args) < 2:
                    continue
                receiver = node.func.value
                line = server.path.read_text(encoding="utf-8-sig").splitlines()[node.lineno - 1]
                return Start(
                    receiver.id if isinstance(receiver, ast.Name) else "", f"{server.path.name}:{node.lineno}",
                    len(line) - len(line.lstrip()),
                )  # fmt: skip
        return None

    def imports(self) -> set[str]:
        """Full dotted names of all that the app's files import."""
        return {full for module in self.modules.values() for full in module.imported.values()}

    def packages(self) -> set[str]:
        """The top-level packages of these."""
        return {full.partition(".")[0] for full in self.imports()}


def read_project(folder: Path) -> Project:
    """Read an app's pyproject.toml and parse the files that its entry points import.

    Raises:
        ConfigError: When the folder is none, or its pyproject.toml names no ServerApp and ClientApp.
    """
    file = folder / "pyproject.toml"
    if not file.is_file():
        has_none = ", which has no pyproject.toml" if folder.is_dir() else ""
        raise ConfigError(f"PATH is {folder}{has_none}; allowed: the folder of a Flower app")
    app = _table(read_toml(file), "tool", "flwr", "app")
    components = _table(app, "components")
    for key in ("serverapp", "clientapp"):
        named = components.get(key)
        if not isinstance(named, str) or named.count(":") != 1:
            raise ConfigError(
                f'{file}: [tool.flwr.app.components] {key} is {named!r}; allowed: "package.module:object", as Flower wants it'
            )
    modules: dict[str, Module] = {}
    _follow(folder, components["clientapp"].partition(":")[0], modules)
    _follow(folder, components["serverapp"].partition(":")[0], modules)
    config = dict(_flat(_table(app, "config")))
    return Project(folder, components["serverapp"], components["clientapp"], config, modules)


def _table(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = values.get(key)
        values = inner if isinstance(inner, Mapping) else {}
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _follow(folder: Path, name: str, modules: dict[str, Module]) -> None:
    base = folder.joinpath(*name.split("."))
    path = next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)
    if name in modules or not name or path is None:
        return
    try:
        module = modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, SyntaxError):
        return  # the trial names the error
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = [module.source_of(node)] if isinstance(node, ast.ImportFrom) else []
            for other in (*source, *(".".join([*source, alias.name]) for alias in node.names)):
                _follow(folder, other, modules)
