"""The app's own function for data, and how to call it with nothing but the context of a node."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from simulations.external_app.check.source.project import Function, Module, Project

TRAIN, HELD_OUT = re.compile("train", re.IGNORECASE), re.compile("test|val|eval|held", re.IGNORECASE)
DEEPEST = 6
"""Steps from a name to what it was assigned."""


@dataclass(frozen=True)
class Loading:
    """A function (``module:name``) that gives the loaders of a node, and a call of it in terms of ``context``, or None.

    ``names`` are of what it returns; those numbered ``train`` and ``held_out`` (-1: none) hold the training and other data.
    """

    function: str
    call: ast.Call | None
    names: tuple[str, ...]
    train: int
    held_out: int


def read_loading(project: Project) -> Loading | None:
    """Find the function that builds loaders, and the first call of it that a context can make; None where there is none."""
    found: list[Loading] = []
    for module, function in _candidates(project):
        names, target = _returned(module, function), f"{module.name}:{function.name}"
        train = next((at for at, name in enumerate(names) if TRAIN.search(name)), 0)
        held_out = next((at for at, name in enumerate(names) if at != train and HELD_OUT.search(name)), -1)
        callers = (pair for pair in project.calls() if pair[0].full(pair[1].func) == target.replace(":", "."))
        call = next(filter(None, (_in_terms_of_context(*pair, project) for pair in callers)), None)
        found += [Loading(target, call, names, train, held_out)] if names else []
    return next((one for one in found if one.call), found[0] if found else None)


def _candidates(project: Project) -> Iterator[tuple[Module, Function]]:
    for module in project.of_client():
        for node in module.tree.body:
            calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
            if isinstance(node, Function) and any(module.full(one.func).endswith(".DataLoader") for one in calls):
                yield module, node


def _returned(module: Module, function: Function) -> tuple[str, ...]:
    """Names of what a function returns; () when its returns differ in number."""
    found = [
        tuple(map(ast.unparse, node.value.elts)) if isinstance(node.value, ast.Tuple) else (ast.unparse(node.value),)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and module.around(node) is function
    ]
    return found[-1] if found and len({len(one) for one in found}) == 1 else ()


def _in_terms_of_context(caller: Module, call: ast.Call, project: Project) -> ast.Call | None:
    """A call without the local names around it; None when something other than the context is left in it."""
    if caller.around(call) is None or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    filled = _expanded(call, caller)
    used = {node.id for node in ast.walk(filled) if isinstance(node, ast.Name)} - {"context"} - set(dir(builtins))
    own = {*caller.imported, *(name for node in caller.tree.body for name in _bound(node))}
    elsewhere = caller is not project.client and used - {ast.unparse(call.func)}
    return filled if isinstance(filled, ast.Call) and used <= own and not elsewhere else None


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _expanded(expression: ast.expr, module: Module, depth: int = 0) -> ast.expr:
    """A copy of an expression, in which what was assigned stands in the place of local names that were assigned once."""
    function = module.around(expression)
    known = {} if depth > DEEPEST or function is None else _assigned_once(function)

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            value = known.get(node.id)
            return node if value is None else _expanded(value, module, depth + 1)

    changed = Replace().visit(copy.deepcopy(expression))
    assert isinstance(changed, ast.expr)
    return changed


def _assigned_once(function: Function) -> dict[str, ast.expr]:
    nodes = list(ast.walk(function))
    stored = [one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
    times = Counter([*stored, *(one.arg for one in nodes if isinstance(one, ast.arg))])
    found: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                found[name] = value
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                pairs = zip(targets, values, strict=True)
                found |= {target.id: value for target, value in pairs if isinstance(target, ast.Name)}
    return {name: value for name, value in found.items() if times[name] == 1}
