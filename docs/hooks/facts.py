"""What an algorithm says of itself beside its docstring, added to it for the site: source, adaptive attacks, what is assumed."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

FACTS = {
    "source": "Source",
    "threat": "The server knows",
    "adaptive_attacks": "Adaptive attacks",
}
"""Class variable -> what it is called."""


class _Dataclass(griffe.ExprName):
    """The decorator ``algorithm`` as griffe's own extension recognises it: it makes a dataclass."""

    @property
    def canonical_path(self) -> str:
        """Where a dataclass is made."""
        return "dataclasses.dataclass"


class Facts(griffe.Extension):
    """Adds the class variables of ``FACTS`` to the docstring of every class that sets them, and finds exports of one line."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Called by griffe when it has read a module: what is imported as itself is exported (PEP 484), as by ``__all__``."""
        if (mod.is_init_module or mod.name == "exports") and mod.exports is None:
            mod.exports = re.findall(r"^from \S+ import (\w+) as \1$", "\n".join(mod.lines), re.MULTILINE) or None

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called by griffe when it has read a class."""
        for decorator in cls.decorators:
            if str(decorator.value) == "algorithm":
                decorator.value = _Dataclass("dataclass")
        if cls.docstring is None:
            return
        lines = []
        for name, title in FACTS.items():
            attribute = cls.members.get(name)
            value = _literal(getattr(attribute, "value", None))
            if value:
                lines.append(f"**{title}:** {_words(name, value)}")
        if lines:
            cls.docstring.value += "\n\n" + "\n\n".join(lines)


def _words(name: str, value: Any) -> str:
    if name == "adaptive_attacks":
        return ", ".join(f"[{attack}][attacks.{attack}]" for attack in value)
    return str(value)


def _literal(value: Any) -> Any:
    """The value of a literal; None of what has to be worked out."""
    try:
        return ast.literal_eval(str(value))
    except (ValueError, SyntaxError):
        return None
