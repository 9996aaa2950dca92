"""The folder of an app: its pyproject.toml, and the Python files that its two entry points import."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from simulations.console.command_line import read_toml
from simulations.settings.errors import ConfigError

Function = ast.FunctionDef | ast.AsyncFunctionDef
DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
}
"""Import name -> the name to install, where the two differ."""


@dataclass(frozen=True)
class Module:
    """A Python file of the app, parsed."""

    name: str
    path: Path
    tree: ast.Module

    @cached_property
    def imported(self) -> dict[str, str]:
        """Each name that an import binds, anywhere in the file -> its full dotted name."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    found[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                found |= {one.asname or one.name: f"{self.absolute(node)}.{one.name}" for one in node.names}
        return found

    @cached_property
    def within(self) -> dict[ast.AST, Function | None]:
        """Each node -> the innermost function around it; None at the top level."""
        found: dict[ast.AST, Function | None] = {}

        def visit(node: ast.AST, function: Function | None) -> None:
            for child in ast.iter_child_nodes(node):
                found[child] = function
                visit(child, child if isinstance(child, Function) else function)

        visit(self.tree, None)
        return found

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that an import names, with the dots of a relative one resolved."""
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def full(self, expression: ast.expr) -> str:
        """The dotted name of an expression through the file's imports, such as ``torch.nn.Linear``; "" for no dotted name."""
        parts = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        first = self.imported.get(expression.id)
        if first is None:
            first = f"{self.name}.{expression.id}"
        return ".".join([first, *reversed(parts)])

    def at(self, node: ast.AST) -> str:
        """File and line."""
        return f"{self.path.name}:{getattr(node, 'lineno', 0)}"


@dataclass(frozen=True)
class Project:
    """An app as its files describe it.

    Attributes:
        folder: Holds pyproject.toml.
        server_app: ``module:object`` of the ServerApp.
        client_app: Likewise of the ClientApp.
        run_config: Of pyproject.toml, with the keys of tables joined by dots.
        dependencies: As pyproject.toml lists them.
        modules: Name -> file, of all files that the entry points import; those of the client are ``client_modules``.
        unreadable: Errors of files that cannot be parsed.
    """

    folder: Path
    server_app: str
    client_app: str
    run_config: Mapping[str, Any]
    dependencies: tuple[str, ...]
    modules: Mapping[str, Module] = field(default_factory=dict)
    client_modules: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def client(self) -> Module | None:
        """The file of the ClientApp."""
        return self.modules.get(self.client_app.partition(":")[0])

    @property
    def server(self) -> Module | None:
        """The file of the ServerApp."""
        return self.modules.get(self.server_app.partition(":")[0])

    def of_client(self) -> Iterator[Module]:
        """The files that the ClientApp imports, its own first."""
        return (self.modules[name] for name in self.client_modules)

    def calls(self) -> Iterator[tuple[Module, ast.Call]]:
        """Every call in the files of the client."""
        for module in self.of_client():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call):
                    yield module, node

    def definition(self, full: str) -> tuple[Module, Function] | None:
        """The function at the top level of one of the app's files that has this dotted name."""
        module = self.modules.get(full.rpartition(".")[0])
        name = full.rpartition(".")[2]
        for node in module.tree.body if module else ():
            if isinstance(node, Function) and node.name == name and module:
                return module, node
        return None

    def uses(self, *packages: str) -> bool:
        """Whether a file of the app imports one of these packages."""
        return any(
            full.partition(".")[0] in packages for module in self.modules.values() for full in module.imported.values()
        )

    def missing(self) -> list[str]:
        """Packages that files import at their top level and that are not installed, by the names to install."""
        tops = {name for module in self.modules.values() for name in _required(module)}
        own = {name.partition(".")[0] for name in self.modules}
        absent = [
            top
            for top in sorted(tops - own - set(sys.stdlib_module_names))
            if not (self.folder / top).is_dir() and not (self.folder / f"{top}.py").is_file() and _absent(top)
        ]
        return [DISTRIBUTIONS.get(top, top.replace("_", "-")) for top in absent]


def read_project(folder: Path) -> Project:
    """Read an app's pyproject.toml and parse the files that its entry points import.

    Raises:
        ConfigError: When the folder is none, or its pyproject.toml names no ServerApp and ClientApp.
    """
    file = folder / "pyproject.toml"
    if not folder.is_dir():
        raise ConfigError(f"PATH is {folder}; allowed: the folder of a Flower app")
    if not file.is_file():
        raise ConfigError(f"PATH is {folder}, which has no pyproject.toml; allowed: the folder of a Flower app")
    values = read_toml(file)
    app = _table(values, "tool", "flwr", "app")
    components = _table(app, "components")
    for key in ("serverapp", "clientapp"):
        named = components.get(key)
        if not isinstance(named, str) or named.count(":") != 1:
            raise ConfigError(
                f'{file}: [tool.flwr.app.components] {key} is {named!r}; allowed: "package.module:object", as Flower wants it'
            )
    dependencies = _table(values, "project").get("dependencies", [])
    modules: dict[str, Module] = {}
    unreadable: list[str] = []
    for key in ("clientapp", "serverapp"):
        _follow(folder, components[key].partition(":")[0], modules, unreadable)
    of_client: dict[str, Module] = {}
    _follow(folder, components["clientapp"].partition(":")[0], of_client, [])
    return Project(
        folder, components["serverapp"], components["clientapp"], dict(_flat(_table(app, "config"))),
        tuple(map(str, dependencies)), modules, tuple(of_client), tuple(unreadable),
    )  # fmt: skip


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


def _follow(folder: Path, name: str, found: dict[str, Module], unreadable: list[str]) -> None:
    """Parses a module of the app and all that it imports from the app's folder."""
    base = folder.joinpath(*name.split("."))
    path = next((one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()), None)
    if name in found or not name or path is None:
        return
    try:
        module = Module(name, path, ast.parse(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, SyntaxError) as error:
        unreadable.append(f"{path.relative_to(folder)}: {type(error).__name__}: {error}")
        return
    found[name] = module
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [module.absolute(node), *(f"{module.absolute(node)}.{one.name}" for one in node.names)]
        else:
            continue
        for other in names:
            _follow(folder, other, found, unreadable)


def _required(module: Module) -> Iterator[str]:
    """Top-level packages of imports that run, outside ``try``, when the file is imported."""
    for node in module.tree.body:
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _absent(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is None
    except (ValueError, ImportError):
        return False
