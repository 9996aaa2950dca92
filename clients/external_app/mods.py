"""The mods that act on an app's replies, and their settings."""

import functools
import hashlib
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, NamedTuple

from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, message_size_mod

from clients.external_app.protect import ProtectMod
from clients.flower_private import WRAPPED, functions_of, mods_around
from clients.messages.node import Mod
from defenses.base import DefenseError
from defenses.registry import RegistryError
from defenses.spec import SpecError, parse

PASSIVE: tuple[Mod, ...] = (arrays_size_mod, message_size_mod)
"""Log the size of what passes."""
LONGEST, LONGEST_WORD = 200, 40
"""Most characters of a mod's text and of a text setting; longer texts are cut, and a digest distinguishes them."""
SECRET = re.compile("seed|key|secret|token|passw|salt", re.IGNORECASE)
"""Names of settings whose values stay at the node: the seed of a noise takes it off again."""


def mods_of(app: ClientApp) -> list[Mod]:
    """Mods of the app and of its ``@app.train``, outermost first; the second group is read from the registered function.

    Raises:
        ValueError: When nothing answers training yet, or its functions have different mods.
    """
    functions = functions_of(app)
    chains = [_around(functions[name]) for name in training_names(app)]
    if not chains:
        raise ValueError("answer_audits: nothing answers training yet; call it after @app.train, whose mods it reads")
    if any(chain != chains[0] for chain in chains):
        texts = "; ".join(named(chain) or "none" for chain in chains)
        raise ValueError(
            f"answer_audits: the functions of @app.train have different mods ({texts}); name those of mods="
        )
    return chains[0]


def training_names(app: ClientApp) -> list[str]:
    """The functions of an app that answer training, as Flower names them."""
    return [name for name in functions_of(app) if name.startswith("train.")]


def inner_mods(app: ClientApp, mods: Sequence[Mod]) -> list[Mod]:
    """``mods`` without those of the app at their beginning, which Flower puts around every function anyway."""
    everywhere = mods_around(app)
    begins = [id(mod) for mod in mods[: len(everywhere)]] == [id(mod) for mod in everywhere]
    return list(mods[len(everywhere) :] if begins else mods)


def named(mods: Sequence[Mod]) -> str:
    """Text of the mods that change a reply, each with its settings, in the order in which they act: the last one first."""
    acting = (mod for mod in reversed(mods) if not any(mod is passive for passive in PASSIVE))
    return " | ".join(mod.text if isinstance(mod, ProtectMod) else described(mod) for mod in acting)


class ModBudget(NamedTuple):
    """Local differential privacy that a ``LocalDpMod`` is set to for a message, and the settings that determine its noise.

    The noise is for ``sensitivity``; no update is longer than ``clipping_norm``.
    """

    epsilon: float
    delta: float
    sensitivity: float
    clipping_norm: float

    @property
    def farthest(self) -> float:
        """Largest distance between two clipped updates."""
        return 2 * self.clipping_norm

    @property
    def holds(self) -> bool:
        """Whether the noise covers the largest distance between two updates; Flower leaves both numbers to the user."""
        return self.sensitivity >= self.farthest


def budgets(mods: Sequence[Mod]) -> list[ModBudget]:
    """Budgets of each ``LocalDpMod``; other mods state none."""
    mine = [mod for mod in mods if isinstance(mod, LocalDpMod)]
    return [ModBudget(*(float(getattr(mod, name)) for name in ModBudget._fields)) for mod in mine]


def described(mod: Any) -> str:
    """A mod by its name and its plain settings, such as ``LocalDpMod(clipping_norm=1.0, ...)``.

    Settings are the attributes of an object, what a function closes over and its defaults, and the arguments of a partial. Values
    other than numbers, truth values and texts, and those whose name sounds like a secret (``SECRET``), are named by their type. A
    text that fedveil would read as one of its own defences gets its module in front: attacks may not reckon with that defence.
    """
    name, settings = _parts(mod)
    shown = ", ".join(f"{key}={value}" for key, value in settings)
    text = f"{name}({shown})" if shown else name
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… {hashlib.blake2b(text.encode(), digest_size=4).hexdigest()})"
    with suppress(SpecError, RegistryError, DefenseError):
        if parse(text).defenses:
            return f"{getattr(mod, '__module__', type(mod).__module__)}.{text}"
    return text


def _parts(mod: Any) -> tuple[str, list[tuple[str, str]]]:
    if isinstance(mod, functools.partial):
        name, inner = _parts(mod.func)
        given = [*((str(at), value) for at, value in enumerate(mod.args)), *mod.keywords.items()]
        return name, [*((k, v) for k, v in inner if k not in mod.keywords), *((k, _plain(k, v)) for k, v in given)]
    if hasattr(mod, "__func__"):  # a method, of an object that holds its settings
        name, settings = _parts(mod.__self__)
        return f"{name}.{mod.__name__}", settings
    pairs = _of_function(mod) if hasattr(mod, "__code__") else _of_object(mod)
    return str(getattr(mod, "__name__", type(mod).__name__)), [(key, _plain(key, value)) for key, value in pairs]


def _of_function(function: Any) -> Iterator[tuple[str, Any]]:
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    yield from ((own.name, own.default) for own in parameters if own.default is not own.empty)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _of_object(mod: Any) -> Iterator[tuple[str, Any]]:
    yield from vars(mod).items() if hasattr(mod, "__dict__") else ()
    for name in (slot for base in type(mod).__mro__ for slot in getattr(base, "__slots__", ())):
        if name != "__dict__" and hasattr(mod, name):
            yield name, getattr(mod, name)


def _plain(name: str, value: Any) -> str:
    if SECRET.search(name) or not (value is None or isinstance(value, Real | str)):
        return type(value).__name__
    if isinstance(value, str):
        # These characters separate stages and pipelines.
        word = repr(value).replace("|", "/").replace(";", ",")
        cut = hashlib.blake2b(value.encode(), digest_size=4).hexdigest()
        return word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}… {cut}'"
    if value is None or isinstance(value, bool):
        return str(value)
    return repr(int(value) if isinstance(value, Integral) else float(value))


def _around(function: Any) -> list[Mod]:
    mods = []
    while getattr(getattr(function, "__code__", None), "co_freevars", ()) == WRAPPED:
        held = dict(zip(WRAPPED, (cell.cell_contents for cell in function.__closure__), strict=True))
        function, mod = (held[name] for name in WRAPPED)
        mods.append(mod)
    return mods
