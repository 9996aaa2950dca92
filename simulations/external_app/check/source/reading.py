"""All facts from an app's source that a trial of the app does not show; numbers of training are not among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulations.external_app.check.source.loading import Loading, read_loading
from simulations.external_app.check.source.project import Function, Module, Project

Numbers = tuple[float, ...]
LABEL = re.compile(r"label|target|class|^y$", re.IGNORECASE)
LOSS = re.compile("(Loss|_loss|cross_entropy(_with_logits)?)$")


@dataclass(frozen=True)
class WrittenNormalisation:
    """Mean and standard deviation, one number for all channels or one for each, as the source writes them."""

    mean: Numbers
    std: Numbers
    where: str


@dataclass(frozen=True)
class Images:
    """Facts about images in the source, each once.

    ``unreadable`` are places that normalise by numbers which the source does not show. A batch is a mapping with ``image_key`` and
    ``label_key`` ("" where they could not be seen), or a pair.
    """

    normalisations: tuple[WrittenNormalisation, ...] = ()
    unreadable: tuple[str, ...] = ()
    image_key: str = ""
    label_key: str = ""
    pairs: bool = False

    @property
    def normalisation(self) -> WrittenNormalisation | None:
        """The only one; None where there are none or several."""
        return self.normalisations[0] if len(self.normalisations) == 1 else None


class Start(NamedTuple):
    """The call that starts the rounds: the variable before ``.start(`` or "", file and line, indentation."""

    strategy: str
    where: str
    indent: int


@dataclass(frozen=True)
class AppSource:
    """Facts from an app's source: losses as written, with file and line, and what the lines to add need."""

    losses: tuple[str, ...]
    images: Images
    loading: Loading | None
    start: Start | None
    one_hot: bool  # whether a call makes one-hot vectors


def read_source(project: Project) -> AppSource:
    """Look through the files of both entry points; nothing of them is run."""
    losses = dict[str, str]()
    for module, call in project.calls():
        full = module.full(call.func)
        if full.startswith("torch.nn.") and LOSS.search(full):
            losses.setdefault(ast.unparse(call), module.at(call))
    listed = tuple(f"{text} ({where})" for text, where in losses.items())
    one_hot = any(module.full(call.func).endswith((".one_hot", ".eye")) for module, call in project.calls())
    return AppSource(listed, read_images(project), read_loading(project), _start(project), one_hot)


def _start(project: Project) -> Start | None:
    server = project.server
    for node in ast.walk(server.tree) if server else ():
        if server and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start":
            if "grid" not in {one.arg for one in node.keywords} and len(node.args) < 2:
                continue
            receiver = node.func.value
            line = server.path.read_text(encoding="utf-8-sig").splitlines()[node.lineno - 1]
            return Start(
                receiver.id if isinstance(receiver, ast.Name) else "", server.at(node), len(line) - len(line.lstrip())
            )  # fmt: skip
    return None


def read_images(project: Project) -> Images:
    """Look through the files of the ClientApp."""
    found: dict[tuple[Numbers, Numbers], WrittenNormalisation] = {}
    unreadable = []
    for module, call in project.calls():
        full = module.full(call.func)
        name = full.rpartition(".")[2]
        if name == "Normalize":
            if values := _of_call(call, module, project):
                found.setdefault(values, WrittenNormalisation(*values, module.at(call)))
            else:
                unreadable.append(module.at(call))
    if not found:
        for module, values, node in _arithmetic(project):
            found.setdefault(values, WrittenNormalisation(*values, module.at(node)))
    keys, pairs = _fields(project)
    labels = [key for key in keys if LABEL.search(key)]
    others = [key for key in keys if key not in labels]
    image_key, label_key = (one[0] if len(one) == 1 else "" for one in (others, labels))
    return Images(tuple(found.values()), tuple(unreadable), image_key, label_key, pairs)


def _of_call(call: ast.Call, module: Module, project: Project) -> tuple[Numbers, Numbers] | None:
    """Mean and std of ``Normalize(mean, std)`` or ``Normalize(*BOTH)``."""
    named = {one.arg: one.value for one in call.keywords}
    given = [*call.args, *(named[name] for name in ("mean", "std") if name in named)]
    try:
        if len(given) == 1 and isinstance(given[0], ast.Starred):
            mean, std = map(_numbers, _written(given[0].value, module, project))
        else:
            mean, std = (_numbers(_written(one, module, project)) for one in given[:2])
    except (ValueError, TypeError):
        return None
    return (mean, std) if mean and std else None


def _written(expression: ast.expr, module: Module, project: Project) -> Any:
    """The value of a literal, or of a name that stands for one at the top level of a file; ``ValueError`` for others."""
    if isinstance(expression, ast.Name):
        place, _, name = module.full(expression).rpartition(".")
        home = project.modules.get(place)
        for node in home.tree.body if home else ():
            if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                return ast.literal_eval(node.value)
    return ast.literal_eval(expression)


def _numbers(value: Any) -> Numbers:
    numbers = tuple(float(one) for one in (value if isinstance(value, tuple | list) else (value,)))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _arithmetic(project: Project) -> Iterator[tuple[Module, tuple[Numbers, Numbers], ast.AST]]:
    """``(x - 0.5) / 0.5`` with numbers from 0 to 1."""
    for module in project.of_client():
        for node in ast.walk(module.tree):
            match node:
                case ast.BinOp(ast.BinOp(_, ast.Sub(), ast.Constant(float(mean))), ast.Div(), ast.Constant(float(std))):
                    if 0 < mean < 1 and 0 < std < 1:
                        yield module, ((mean,), (std,)), node


def _fields(project: Project) -> tuple[list[str], bool]:
    """Text keys by which the training loops read a batch, and whether they take it apart into two.

    Loops are of functions that compute gradients: those with ``.backward()``, and Lightning's ``training_step``.
    """
    keys: dict[str, None] = {}
    pairs = False
    nodes = (node for module in project.of_client() for node in ast.walk(module.tree) if isinstance(node, Function))
    for function in nodes:
        if function.name != "training_step" and ".backward(" not in ast.unparse(function):
            continue
        batches = {one.arg for one in function.args.args} if function.name == "training_step" else set()
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        batches |= {one.id for loop in loops for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        for node in ast.walk(function):
            match node:
                case ast.Subscript(ast.Name(name), ast.Constant(str(key))) if name in batches:
                    keys[key] = None
                case ast.For(ast.Tuple([_, ast.Tuple([_, _])]), ast.Call(ast.Name("enumerate"))):
                    pairs = True
                case ast.For(ast.Tuple([_, _]), iterable) if not ast.unparse(iterable).startswith("enumerate("):
                    pairs = True
                case ast.Assign([ast.Tuple([_, _])], ast.Name(name)) if name in batches:
                    pairs = True
    return list(keys), pairs and not keys
