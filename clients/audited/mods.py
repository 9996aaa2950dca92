"""Which of Flower's mods act on what an app's clients send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from clients.audited.protect import ProtectMod

WRAPPED = ("_ffn", "_mod")
"""Names that a function of Flower's closes over when it puts a mod (``_mod``) around another function (``_ffn``)."""


def mods_of(app: ClientApp) -> list[Mod]:
    """Those of the app and of its ``@app.train``, the outermost first, as Flower calls them.

    Flower keeps no list of the second: they are read from the function that it registered.

    Raises:
        ValueError: When nothing answers training yet, or its functions have different mods.
    """
    registered: dict[str, Any] = getattr(app, "_registered_funcs", {})
    chains = [_around(function) for name, function in registered.items() if name.startswith("train.")]
    if not chains:
        raise ValueError("answer_audits: nothing answers training yet; call it after @app.train, whose mods it reads")
    if any(chain != chains[0] for chain in chains):
        told = "; ".join(named(chain) or "none" for chain in chains)
        raise ValueError(
            f"answer_audits: the functions of @app.train have different mods ({told}); name those of mods="
        )
    return chains[0]


def inner_mods(app: ClientApp, mods: Sequence[Mod]) -> list[Mod]:
    """Those of ``mods`` that Flower does not put around every function of the app anyway."""
    return list(mods[len(getattr(app, "_mods", [])) :])


def named(mods: Sequence[Mod]) -> str:
    """In the order in which they act on a reply, which is the last one first."""
    return " | ".join(_name(mod) for mod in reversed(mods))


def _around(function: Any) -> list[Mod]:
    found = []
    while getattr(getattr(function, "__code__", None), "co_freevars", ()) == WRAPPED:
        held = dict(zip(WRAPPED, (cell.cell_contents for cell in function.__closure__), strict=True))
        found.append(held["_mod"])
        function = held["_ffn"]
    return found


def _name(mod: Mod) -> str:
    if isinstance(mod, ProtectMod):
        return mod.text
    return f"{getattr(mod, '__name__', type(mod).__name__)}"
