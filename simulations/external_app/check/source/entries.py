"""The two entry points, read from the source: what replies hold, which model is built, where lines can be added."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from simulations.external_app.check.source.origins import Origins
from simulations.external_app.check.source.project import Function, Module, Project
from strategies.recording.usual_names import EXAMPLES

Held = Literal["weights", "differences", "unseen"]


@dataclass(frozen=True)
class SeenReplies:
    """Content of replies to training, where the source shows it.

    Attributes:
        arrays: "weights", "differences" of weights, or "unseen".
        where: File and line of that.
        counts_examples: Whether they count examples by a name that fedveil knows; None where it could not be seen.
        counts_batches: Where ``len`` of a loader, its batches, is given for the number of examples; "" for nowhere.
    """

    arrays: Held = "unseen"
    where: str = ""
    counts_examples: bool | None = None
    counts_batches: str = ""


@dataclass(frozen=True)
class Builder:
    """A call that builds the app's model.

    Attributes:
        target: ``module:name`` of the class or function.
        arguments: Values of its positional arguments; None where one could not be seen.
        keywords: Likewise by name.
        known: Whether all arguments could be seen.
    """

    target: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    known: bool

    @property
    def text(self) -> str:
        """The call."""
        given = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.keywords)]
        return f"{self.target.rpartition(':')[2]}({', '.join(given) if self.known else '...'})"


@dataclass(frozen=True)
class Start:
    """The call that starts the rounds.

    Attributes:
        strategy: The variable before ``.start(``; "" where a strategy is built in the same expression.
        where: File and line.
        context: What ``main`` calls its context.
        indent: Columns before the statement.
    """

    strategy: str
    where: str
    context: str
    indent: int


def read_replies(project: Project) -> SeenReplies:
    """Look at the functions that ``@app.train`` registers."""
    client = project.client
    for function in _registered(client, "train") if client else ():
        assert client is not None
        held, where = _held(project, client, function)
        keys = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)} & set(EXAMPLES)
        plain = any(
            isinstance(node, ast.Call) and client.full(node.func).endswith("MetricRecord")
            for node in ast.walk(function)
        )
        return SeenReplies(held, where, True if keys else False if plain else None, _counts_batches(client, function))
    return SeenReplies()


def _registered(module: Module, kind: str) -> Iterator[Function]:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            for one in node.decorator_list:
                called = one.func if isinstance(one, ast.Call) else one
                if isinstance(called, ast.Attribute) and called.attr == kind:
                    yield node


def _held(project: Project, module: Module, function: Function) -> tuple[Held, str]:
    origins = Origins(project)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and module.full(node.func).endswith("ArrayRecord"):
            given = [*node.args, *(one.value for one in node.keywords)]
            if given:
                return _kind(project, module, origins.expanded(given[0], module)), module.at(node)
    return "unseen", ""


def _kind(project: Project, module: Module, expression: ast.expr) -> Held:
    if _subtracts(expression):
        return "differences"
    text = ast.unparse(expression)
    if text.endswith(".state_dict()") or ".state_dict().items()" in text or ".state_dict().values()" in text:
        return "weights"
    called = project.definition(module.full(expression.func)) if isinstance(expression, ast.Call) else None
    if called is not None:
        returned = [
            node.value for node in ast.walk(called[1]) if isinstance(node, ast.Return) and node.value is not None
        ]
        if any(map(_subtracts, returned)):
            return "differences"
        if returned and all(".state_dict()" in ast.unparse(one) for one in returned):
            return "weights"
    return "unseen"


def _subtracts(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) for node in ast.walk(expression))


def _counts_batches(module: Module, function: Function) -> str:
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in EXAMPLES and isinstance(value, ast.Call):
                    given = ast.unparse(value.args[0]) if value.args else ""
                    if ast.unparse(value.func) == "len" and given.isidentifier() and "loader" in given.lower():
                        return f"len({given}) at {module.at(value)}"
    return ""


def read_builders(project: Project, origins: Origins) -> list[Builder]:
    """Calls whose result gives a ``state_dict`` or takes one, first those of the server; behind them calls of which a part does."""
    found: dict[str, Builder] = {}
    of_parts: dict[str, Builder] = {}
    for module in (project.server, project.client):
        for node in ast.walk(module.tree) if module else ():
            called = node.func if isinstance(node, ast.Call) else None
            if module and isinstance(called, ast.Attribute) and called.attr in ("state_dict", "load_state_dict"):
                whole = _unwrapped(origins.expanded(called.value, module))
                built = _owner(whole)
                if isinstance(built, ast.Call) and (full := module.full(built.func)):
                    builder, kept = (
                        _builder(full, built, module, project, origins),
                        found if built is whole else of_parts,
                    )
                    if full not in kept or (builder.known and not kept[full].known):
                        kept[full] = builder
    return [*found.values(), *(one for full, one in of_parts.items() if full not in found)]


def _builder(full: str, call: ast.Call, module: Module, project: Project, origins: Origins) -> Builder:
    given = [_value(one, module, project, origins) for one in call.args]
    named = [(one.arg or "**", _value(one.value, module, project, origins)) for one in call.keywords]
    known = None not in given and all(name != "**" and value is not None for name, value in named)
    place, _, name = full.rpartition(".")
    return Builder(
        f"{place}:{name}", tuple(one[0] if one else None for one in given),
        tuple((key, one[0] if one else None) for key, one in named), known,
    )  # fmt: skip


def _unwrapped(expression: ast.expr) -> ast.expr:
    """``Net().to(device)`` without its end."""
    while (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr in ("to", "cpu", "cuda", "train", "eval")
    ):
        expression = expression.func.value
    return expression


def _owner(expression: ast.expr) -> ast.expr:
    """The model of a part such as ``Net().blocks[-1]``; what a string names, such as ``load(file)["model"]``, is no part of one."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        if isinstance(expression, ast.Subscript) and isinstance(getattr(expression.slice, "value", None), str):
            return expression
        expression = _unwrapped(expression.value)
    return expression


def _value(expression: ast.expr, module: Module, project: Project, origins: Origins) -> tuple[Any] | None:
    """The value of an expanded argument; None where it is not to be seen. An expansion's nodes are none of the file's."""
    text = ast.unparse(expression)
    for key, value in project.run_config.items():
        if text.removesuffix(")").endswith(f"run_config['{key}']"):
            return (value,)
    origin = origins.of(expression, module)
    return (origin.value,) if origin.kind == "constant" else None


def read_start(project: Project) -> Start | None:
    """The ``strategy.start(...)`` of the ServerApp's file; None where there is none."""
    server = project.server
    for node in ast.walk(server.tree) if server else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start":
            assert server is not None
            names = {one.arg for one in node.keywords}
            if "grid" not in names and not (node.args and len(node.args) >= 2):
                continue
            around = server.within.get(node)
            given = [one.arg for one in around.args.args] if around else []
            receiver = node.func.value
            lines = server.path.read_text(encoding="utf-8-sig").splitlines()
            line = lines[node.lineno - 1]
            return Start(
                receiver.id if isinstance(receiver, ast.Name) else "", server.at(node), given[1] if len(given) > 1 else "context",
                len(line) - len(line.lstrip()),
            )  # fmt: skip
    return None


def calls_of(module: Module | None, name: str) -> list[str]:
    """Where a file calls a function by this name."""
    nodes = ast.walk(module.tree) if module else ()
    return [
        module.at(node)
        for node in nodes
        if module and isinstance(node, ast.Call) and module.full(node.func).rpartition(".")[2] == name
    ]
