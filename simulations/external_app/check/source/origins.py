"""Where a value in an app's source comes from: written there, in the run's configuration, or in the message of training."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simulations.external_app.check.source.project import Function, Module, Project

DEEPEST = 6
"""Steps from a name to what it was assigned, or from a parameter to the calls that give it."""
CASTS = ("int", "float", "str", "bool")


@dataclass(frozen=True)
class Origin:
    """Where a value comes from.

    Attributes:
        kind: "constant" (``value`` is it), "run_config" or "message" (``value`` is the key), or "unknown".
        value: Of that kind.
        text: The expression, as the source writes it.
        where: File and line of the expression.
    """

    kind: Literal["constant", "run_config", "message", "unknown"]
    value: Any
    text: str
    where: str

    def found(self, round_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Any:
        """The value itself; None where it cannot be known."""
        if self.kind == "constant":
            return self.value
        known = {"run_config": run_config, "message": round_config}.get(self.kind, {})
        return known.get(str(self.value))

    def described(self) -> str:
        """In words."""
        names = {"run_config": "run configuration", "message": "message of training"}
        if self.kind == "constant":
            return f"{self.value!r} ({self.where})"
        if self.kind == "unknown":
            return f"`{self.text}` ({self.where}), whose value could not be seen"
        return f"`{self.value}` of the {names[self.kind]} ({self.where})"


class Origins:
    """Follows names of an app's source to their values."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def of(self, expression: ast.expr, module: Module, depth: int = 0) -> Origin:
        """The origin of an expression in a file."""
        text, where = ast.unparse(expression), module.at(expression)
        unknown = Origin("unknown", None, text, where)
        if depth > DEEPEST:
            return unknown
        try:
            return Origin("constant", ast.literal_eval(expression), text, where)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            pass
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
            if expression.func.id in CASTS and len(expression.args) == 1:
                return self.of(expression.args[0], module, depth + 1)
            return unknown
        if key := _key(expression):
            return self._looked_up(*key, module, unknown)
        if isinstance(expression, ast.Name):
            return self._named(expression, module, depth, unknown)
        return unknown

    def _looked_up(self, base: ast.expr, name: str, module: Module, unknown: Origin) -> Origin:
        text = ast.unparse(self.expanded(base, module))
        if text.endswith("run_config"):
            return Origin("run_config", name, unknown.text, unknown.where)
        if ".content" in text or "config_records" in text:
            return Origin("message", name, unknown.text, unknown.where)
        return unknown

    def _named(self, name: ast.Name, module: Module, depth: int, unknown: Origin) -> Origin:
        function = module.within.get(name)
        while function is not None:
            values = assigned(function).get(name.id, [])
            if values:
                return self._agreed([self.of(one, module, depth + 1) for one in values if one is not None], unknown)
            if name.id in parameters(function):
                return self._parameter(name.id, function, module, depth, unknown)
            function = module.within.get(function)
        home = module
        full = module.imported.get(name.id, "")
        if full:
            other = self._project.modules.get(full.rpartition(".")[0])
            if other is None:
                return unknown
            home, identifier = other, full.rpartition(".")[2]
        else:
            identifier = name.id
        values = assigned(home.tree).get(identifier, [])
        return self._agreed([self.of(one, home, depth + 1) for one in values if one is not None], unknown)

    def _parameter(self, name: str, function: Function, module: Module, depth: int, unknown: Origin) -> Origin:
        """What the calls of a function in the app give for a parameter; its default where none gives it."""
        found = []
        for caller, call in self.callers(module, function):
            given = argument(call, name, parameters(function).index(name))
            if given is not None:
                found.append(self.of(given, caller, depth + 1))
            elif (default := _default(function, name)) is not None:
                found.append(self.of(default, module, depth + 1))
        if not found and (default := _default(function, name)) is not None:
            found = [self.of(default, module, depth + 1)]
        return self._agreed(found, unknown)

    def callers(self, module: Module, function: Function) -> Iterator[tuple[Module, ast.Call]]:
        """The calls of a top-level function in the files of the client."""
        full = f"{module.name}.{function.name}"
        return ((caller, call) for caller, call in self._project.calls() if caller.full(call.func) == full)

    @staticmethod
    def _agreed(found: list[Origin], unknown: Origin) -> Origin:
        same = {(one.kind, repr(one.value)) for one in found}
        return found[0] if len(same) == 1 else unknown

    def expanded(self, expression: ast.expr, module: Module, depth: int = 0) -> ast.expr:
        """Replace local names that were assigned once by their assigned expressions."""
        function = module.within.get(expression)
        if depth > DEEPEST or function is None:
            return expression
        known = {
            name: values[0] for name, values in assigned(function).items() if len(values) == 1 and values[0] is not None
        }
        outer = self

        class Replace(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                value = known.get(node.id)
                return node if value is None else copy.deepcopy(outer.expanded(value, module, depth + 1))

        changed = Replace().visit(copy.deepcopy(expression))
        assert isinstance(changed, ast.expr)
        return changed


def _key(expression: ast.expr) -> tuple[ast.expr, str] | None:
    """``base["name"]`` or ``base.get("name", ...)``: base and name."""
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        base, name = expression.value, expression.slice.value
    elif (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr == "get"
        and expression.args
        and isinstance(expression.args[0], ast.Constant)
    ):
        base, name = expression.func.value, expression.args[0].value
    else:
        return None
    return (base, name) if isinstance(name, str) else None


def parameters(function: Function) -> list[str]:
    """Names of a function's parameters, in order."""
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Argument of a call for a parameter; None where there is none, or where stars hide it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    before = call.args[: position + 1]
    if len(before) == position + 1 and not any(isinstance(one, ast.Starred) for one in before):
        return before[position]
    return None


def _default(function: Function, name: str) -> ast.expr | None:
    given = function.args
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    defaults = dict(zip(reversed(positional), reversed(given.defaults), strict=False))
    keyword = zip((one.arg for one in given.kwonlyargs), given.kw_defaults, strict=True)
    return defaults.get(name) or dict(keyword).get(name)


def assigned(scope: ast.AST) -> dict[str, list[ast.expr | None]]:
    """Names that a scope assigns -> the expressions; None for one that no expression of the source gives (loops, unpacking)."""
    found: dict[str, list[ast.expr | None]] = {}
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _pair(target, node.value, found)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            _pair(node.target, node.value, found)
        elif isinstance(node, ast.AugAssign | ast.For):
            _pair(node.target, None, found)
    return found


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions and classes inside."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield from _own_nodes(child)


def _pair(target: ast.expr, value: ast.expr | None, found: dict[str, list[ast.expr | None]]) -> None:
    if isinstance(target, ast.Name):
        found.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
        for at, inner in enumerate(target.elts):
            _pair(inner, parts[at] if parts else None, found)
