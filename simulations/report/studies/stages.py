"""The stages of an attack or a pipeline in a row; this machine need not know their names."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from defenses.spec import SpecError, stages
from simulations.report.studies.rows import grouped

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


@functools.cache
def stages_of(text: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of each stage; a text that is no chain, such as the name of a mod, is one stage of that name."""
    try:
        return stages(text)
    except SpecError:
        return ((text, text),)


def names_of(text: str) -> tuple[str, ...]:
    """Names of the stages."""
    return tuple(name for name, _ in stages_of(text))


def first_stage(text: str) -> str:
    """Text of the first stage; in a chain, the attack whose guess the others refine."""
    return stages_of(text)[0][1] if text else ""


def strengths(pipelines: Sequence[str]) -> list[tuple[str, ...]]:
    """Groups of two or more pipelines that differ in one number, the defence's strength, in its order."""
    numbers = {text: tuple(map(float, _NUMBER.findall(text))) for text in pipelines}
    alike = grouped(numbers, lambda text: _NUMBER.sub("#", text)).values()
    return [
        tuple(sorted(of, key=lambda text: (numbers[text], text)))
        for of in alike
        if sum(len(set(values)) > 1 for values in zip(*(numbers[text] for text in of), strict=True)) == 1
    ]
