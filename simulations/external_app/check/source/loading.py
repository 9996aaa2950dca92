"""The app's own function for data, and how to call it with nothing but the context of a node."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass

from simulations.external_app.check.source.origins import Origins
from simulations.external_app.check.source.project import Function, Module, Project

TRAIN, HELD_OUT = re.compile("train", re.IGNORECASE), re.compile("test|val|eval|held", re.IGNORECASE)


@dataclass(frozen=True)
class Loading:
    """A call that gives the loaders of a node.

    Attributes:
        function: ``module:name`` of the function.
        call: The call, in terms of ``context``; "" where it needs what a context does not hold.
        names: Of what it returns, in order; ("",) for one thing.
        train: Which of them holds the training data.
        held_out: Which of them holds other data; -1 for none.
        is_loader: Whether it returns DataLoaders, whose ``dataset`` is wanted, rather than data sets.
    """

    function: str
    call: str
    names: tuple[str, ...]
    train: int
    held_out: int
    is_loader: bool


def read_loading(project: Project, origins: Origins) -> Loading | None:
    """Find the function that builds loaders, and the first call of it that a context can make; None where there is none."""
    found: Loading | None = None
    for module, function in _candidates(project):
        names = _returned(function)
        if not names:
            continue
        train = next((at for at, name in enumerate(names) if TRAIN.search(name)), 0)
        held_out = [at for at, name in enumerate(names) if at != train and HELD_OUT.search(name)]
        calls = (
            _in_terms_of_context(caller, call, project, origins) for caller, call in origins.callers(module, function)
        )
        call = next((one for one in calls if one), "")
        loading = Loading(
            f"{module.name}:{function.name}",
            call,
            names,
            train,
            held_out[0] if held_out else -1,
            _builds_loaders(module, function),
        )
        if call:
            return loading
        found = found or loading
    return found


def _candidates(project: Project) -> Iterator[tuple[Module, Function]]:
    for module in project.of_client():
        for node in module.tree.body:
            if isinstance(node, Function) and _builds_loaders(module, node):
                yield module, node


def _builds_loaders(module: Module, function: Function) -> bool:
    return any(
        isinstance(node, ast.Call) and module.full(node.func).rpartition(".")[2] == "DataLoader"
        for node in ast.walk(function)
    )


def _returned(function: Function) -> tuple[str, ...]:
    """Names of what a function returns; () when its returns differ in number."""
    inner = {
        id(node)
        for one in ast.walk(function)
        if isinstance(one, Function) and one is not function
        for node in ast.walk(one)
    }
    found = [
        tuple(map(ast.unparse, node.value.elts)) if isinstance(node.value, ast.Tuple) else (ast.unparse(node.value),)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and id(node) not in inner
    ]
    return found[-1] if found and len({len(one) for one in found}) == 1 else ()


def _in_terms_of_context(caller: Module, call: ast.Call, project: Project, origins: Origins) -> str:
    """A call without the local names around it; "" when something other than the context is left in it."""
    around = caller.within.get(call)
    if around is None or any(isinstance(one, ast.Starred) for one in call.args):
        return ""
    filled = origins.expanded(call, caller)
    own = {node.id for node in ast.walk(filled) if isinstance(node, ast.Name)} - {"context"} - set(dir(builtins))
    named = {name for node in caller.tree.body for name in _bound(node)}
    client = project.client
    if client is None or own - named or (caller.name != client.name and own - {ast.unparse(call.func)}):
        return ""
    return ast.unparse(filled)


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((one.asname or one.name).partition(".")[0] for one in node.names)
    elif isinstance(node, ast.Assign):
        yield from (one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name))
