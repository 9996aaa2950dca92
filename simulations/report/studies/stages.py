"""The stages of an attack or a pipeline in a row; this machine need not know their names."""

import functools

from defenses.spec import SpecError, stages


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
