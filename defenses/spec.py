"""Configuration text <-> objects: ``VisualMixer(window_upper=8) | GaussianNoise(std=0.01)``, parsed as literals by ``ast``.

``;`` or newlines separate statements, ``|`` separates stages. ``parse`` reads the ``repr`` of a dataclass. Only
``read_files`` opens files.
"""

import ast
import difflib
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from defenses.base import DEFENSES
from defenses.checks import cut
from defenses.pipeline import Pipeline

Names = Mapping[str, Callable[..., Any]]
"""Allowed name -> class or function that the name calls."""
LONGEST = 400
"""Most characters of a text that an error quotes."""
LONGEST_TEXT = 200_000
"""Most characters of a configuration text: enough for all allowed statements and stages."""
MOST_STATEMENTS = 200
"""Most pipelines or attacks of a run: each pipeline is trained on its own, which takes a minute of the smallest audit."""
MOST_STAGES = 32
"""Most stages of one chain: every stage acts on each batch, and no published defence has more than four."""
NEAREST = 5
"""Most known names that an error about an unknown name shows where there are many."""
LIKENESS = 0.5
"""Least ratio of ``difflib`` at which a known name is called near."""
LISTED = {"defence": "defenses", "attack": "attacks"}
"""Noun of an error -> section of ``fedveil list`` that shows all names."""


class SpecError(ValueError):
    """Configuration text with an unknown name or an argument that is not allowed."""


Make = Callable[[Any, Mapping[str, Any]], Any]
"""(class or function, arguments) -> object."""


def call(kind: Any, given: Mapping[str, Any]) -> Any:
    """Make an object: the usual ``Make``."""
    return kind(**given)


def parse_statements(text: str, registry: Names, what: str, make: Make = call) -> list[list[Any]]:
    """Parse ``A() | B(x=1); C()`` into ``[[A(), B(x=1)], [C()]]``.

    Empty statements are skipped. ``what`` is the noun of error messages, such as "defence".

    Raises:
        SpecError: Naming the text, what came and what is allowed.
    """
    return [[_build(node, registry, what, make) for node in chain] for chain in _chains(text, what)[1]]


def stages(text: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of each stage of one chain, in order; no object is made, so that names may be unknown.

    Raises:
        SpecError: See ``parse_statements``; also when the text is not one chain of names and calls of names.
    """
    clean, chains = _chains(text, "chain")
    if len(chains) > 1:
        raise SpecError(f"{cut(repr(text), LONGEST)} holds {len(chains)} chains where at most one is expected")
    called = [(node.func if isinstance(node, ast.Call) else node, node) for chain in chains for node in chain]
    if odd := next((node for name, node in called if not isinstance(name, ast.Name)), None):
        raise SpecError(f"{_shown(odd)}: expected Name(argument=value)")
    return tuple(
        (name.id, str(ast.get_source_segment(clean, node))) for name, node in called if isinstance(name, ast.Name)
    )


def _chains(text: str, what: str) -> tuple[str, list[list[ast.expr]]]:
    """The cleaned text, and the stages of each of its statements."""
    if len(text) > LONGEST_TEXT:
        raise SpecError(f"the {what} text has {len(text)} characters; allowed: at most {LONGEST_TEXT}")
    clean = "\n".join(part.strip() for part in text.replace("\n", ";").split(";") if part.strip())
    try:
        tree = ast.parse(clean)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # all of which some text provokes
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise SpecError(
            f"{what} text {cut(repr(text), LONGEST)} cannot be read: {reason}; write Name(argument=value) | Name()"
        ) from None
    if len(tree.body) > MOST_STATEMENTS:
        raise SpecError(f"the {what} text holds {len(tree.body)} statements; allowed: at most {MOST_STATEMENTS}")
    chains = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            raise SpecError(f"{what} text {_shown(statement)}: expected Name(argument=value), not a statement")
        chains.append(_flatten(statement.value))
    if (longest := max(map(len, chains), default=0)) > MOST_STAGES:
        raise SpecError(f"the {what} text joins {longest} stages by |; allowed: at most {MOST_STAGES}")
    return clean, chains


def parse(text: str) -> Pipeline:
    """Parse the text of one pipeline; the empty text is the empty pipeline.

    Raises:
        SpecError: See ``parse_statements``; also when the text holds several pipelines.
        DefenseError: When these defences cannot form a chain.
    """
    statements = parse_statements(text, DEFENSES, "defence")
    if len(statements) > 1:
        raise SpecError(f"{text!r} holds {len(statements)} pipelines where one is expected")
    return Pipeline(tuple(statements[0])) if statements else Pipeline()


def parse_pipelines(text: str) -> list[Pipeline]:
    """Parse pipelines separated by ``;``; the empty pipeline comes first, written or not.

    Raises:
        SpecError: See ``parse_statements``; also when two texts give the same pipeline.
        DefenseError: When defences cannot form a chain.
    """
    pipelines = [Pipeline(tuple(stages)) for stages in parse_statements(text, DEFENSES, "defence")]
    if twice := next((pipeline for pipeline, count in Counter(pipelines).items() if count > 1), None):
        raise SpecError(f"{twice} is given twice; allowed: each pipeline once")
    return [Pipeline(), *(pipeline for pipeline in pipelines if pipeline.defenses)]


def read_files(text: str) -> str:
    """Replace names of files in a user's pipelines by the contents of the files, and return the text.

    Call this function once, on text that a user wrote; relative paths start at the working directory. The program sends and stores
    only the result. ``parse``, which opens no files, reads the texts of messages and of stored runs.

    Raises:
        SpecError: See ``parse_statements``; also when a file cannot be read.
        DefenseError: When defences cannot form a chain.
    """
    statements = parse_statements(text, DEFENSES, "defence", lambda kind, given: kind.configured(**given))
    return "; ".join(str(Pipeline(tuple(stages))) for stages in statements)


def settings_of(kind: Any) -> dict[str, inspect.Parameter]:
    """Parameters of a class or function that a text may set.

    Fields that hold learned values are excluded: they have ``repr=False`` and never appear in a text.
    """
    own = {spec.name for spec in fields(kind) if not spec.repr} if is_dataclass(kind) else set()
    return {name: parameter for name, parameter in inspect.signature(kind).parameters.items() if name not in own}


def _flatten(node: ast.expr) -> list[ast.expr]:
    """The stages of a chain, from left to right; iterative, because the syntax tree is as deep as the chain is long."""
    chain, open_nodes = list[ast.expr](), [node]
    while open_nodes:
        branch = open_nodes.pop()
        if isinstance(branch, ast.BinOp) and isinstance(branch.op, ast.BitOr):
            open_nodes += [branch.right, branch.left]
        else:
            chain.append(branch)
    return chain


def _build(node: ast.expr, registry: Names, what: str, make: Make) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise SpecError(f"{what} {_shown(node)}: expected Name(argument=value)")
    name = call.func.id
    if name not in registry:
        raise SpecError(f"unknown {what} {name!r}{suggest(name, registry)}; {_known(name, registry, what)}")
    parameters = list(settings_of(registry[name]))
    if len(call.args) > len(parameters):
        raise SpecError(f"{what} {name} takes at most {len(parameters)} arguments, got {len(call.args)}")
    given = dict(zip(parameters, (_literal(a, name) for a in call.args), strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in parameters:
            shown = keyword.arg or "**"
            allowed = f"known: {', '.join(parameters)}" if parameters else "it takes none"
            raise SpecError(f"{what} {name} has no argument {shown!r}{suggest(shown, parameters)}; {allowed}")
        if keyword.arg in given:
            raise SpecError(f"{what} {name}: argument {keyword.arg!r} is given twice")
        given[keyword.arg] = _literal(keyword.value, name)
    try:
        return make(registry[name], given)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{what} {name}: {error}") from error


def _literal(node: ast.expr, name: str) -> Any:
    sign, inner = (-1, node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else (1, node)
    if isinstance(inner, ast.Name) and inner.id in {"inf", "nan"}:
        return sign * getattr(math, inner.id)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise SpecError(
            f"{name}: {_shown(node)} is not a number, text, True, False, None or a tuple of these"
        ) from None


def _shown(node: ast.AST) -> str:
    try:
        return cut(repr(ast.unparse(node)), LONGEST)
    except RecursionError:
        return "what is nested too deep"


def _known(name: str, registry: Names, what: str) -> str:
    """All known names, or the nearest of many and the command that lists all."""
    if what not in LISTED or len(registry) <= 2 * NEAREST:
        return f"known: {', '.join(sorted(registry))}"
    close = nearest(name, registry, NEAREST)
    shown = f"nearest of {len(registry)}: {', '.join(close)}; " if len(close) > 1 else ""
    return f"{shown}`fedveil list {LISTED[what]}` shows all"


def nearest(name: str, known: Iterable[str], most: int) -> list[str]:
    """Names of similar spelling, the most similar first, in whatever case."""
    folded = {word.casefold(): word for word in known}
    return [folded[close] for close in difflib.get_close_matches(name.casefold(), folded, n=most, cutoff=LIKENESS)]


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known name of the most similar spelling, or ""."""
    return "".join(f", did you mean {close!r}?" for close in nearest(name, known, 1))
