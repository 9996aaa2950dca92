"""Registries of the names in configurations: classes and objects of this package, and of other packages' entry points."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class RegistryError(ValueError):
    """An entry point that offers nothing usable."""


def offered(group: str) -> Iterator[tuple[str, str, Any]]:
    """Entry points of other packages: the name of each, a description for errors, and the loaded object.

    Raises:
        RegistryError: Naming the entry point that cannot be loaded.
    """
    for point in entry_points(group=group):
        where = f"entry point {point.name} = {point.value!r} ({group})"
        try:
            yield point.name, where, point.load()
        except Exception as error:
            raise RegistryError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error


def collected(kind: type, noun: str, group: str, modules: Iterable[str], attribute: str) -> dict[str, Any]:
    """Name -> object or class of this kind: those of this package, then those that other packages offer under an entry point group.

    ``attribute`` of each of ``modules`` holds an object, or a tuple of them; ``noun`` is what errors call one, such as "scenario".

    Raises:
        RegistryError: Of another package: when one cannot be loaded, is something else, or has a name that is taken.
    """
    registered: dict[str, Any] = {}
    for module in modules:
        own: Any = getattr(importlib.import_module(module), attribute)
        registered |= {member.name: member for member in (own if isinstance(own, tuple) else (own,))}
    for _, where, loaded in offered(group):
        fits = isinstance(loaded, kind) or (inspect.isclass(loaded) and issubclass(loaded, kind))
        if not fits:
            raise RegistryError(f"{where} is no {kind.__name__} but {type(loaded).__name__}")
        # Another package must not silently replace a defence or a metric.
        if loaded.name in registered:
            raise RegistryError(f"{where}: there is another {noun} {loaded.name!r}; rename one of them")
        registered[loaded.name] = loaded
    return registered


def modules_in(package: str, inner: str = "", without: str = "") -> list[str]:
    """Full names of the modules of a package, sorted, or of the modules ``inner`` of its subpackages that have one.

    ``without`` is left out, usually the calling module.
    """
    path = importlib.import_module(package).__path__
    names = sorted(f"{package}.{info.name}" for info in pkgutil.iter_modules(path) if info.ispkg or not inner)
    if inner:
        names = [f"{name}.{inner}" for name in names if find_spec(f"{name}.{inner}")]
    return [name for name in names if name != without]


class Registry(Mapping[str, Callable[..., Any]]):
    """Name -> class, of this package and of other packages, which are found and used in the same way.

    Another package offers a class in its ``pyproject.toml``, under the name that texts use::

        [project.entry-points."fedveil.defenses"]
        MyDefense = "my_package.my_module:MyDefense"

    Args:
        base: What every class derives from.
        group: The group of entry points, such as "fedveil.defenses".
        exports: The module that imports the classes of this package.
    """

    def __init__(self, base: type, group: str, exports: str) -> None:
        self.base, self.group, self.exports = base, group, exports
        self.here: dict[str, Callable[..., Any]] = {}

    def export(self, package: dict[str, Any]) -> None:
        """Set the ``__all__`` of the module of exports, which ``help`` needs to show them.

        ``package`` is its ``globals()``. Modules, registries and names with an underscore are no exports.
        """
        internal = (ModuleType, Registry, type(annotations))
        exports = [name for name, value in package.items() if name[0] != "_" and not isinstance(value, internal)]
        package["__all__"] = exports

    def learn(self, own: type) -> None:
        """Register a class of the running program, in this process alone; ``RegistryError`` where another package has its name."""
        name, known = own.__name__, {**self._own, **self._foreign}
        if known.get(name, own) is not own or not self._is_concrete(own):
            raise RegistryError(f"{name}: expected a dataclass of a new name that derives from {self.base.__name__}")
        self.here |= {} if name in known else {name: own}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        known = self._own if name in self._own else self.here if name in self.here else self._foreign
        return known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._foreign, **self.here})

    def __len__(self) -> int:
        return len({**self._own, **self._foreign, **self.here})

    @functools.cached_property
    def _own(self) -> dict[str, Callable[..., Any]]:
        """Concrete classes of this package, imported when a name is first looked up."""
        exports = vars(importlib.import_module(self.exports))
        return {name: value for name, value in exports.items() if self._is_concrete(value)}

    @functools.cached_property
    def _foreign(self) -> dict[str, Callable[..., Any]]:
        """Classes of other packages, loaded when a name is first looked up."""
        classes: dict[str, Callable[..., Any]] = {}
        for name, where, loaded in offered(self.group):
            if name in self._own or name in classes:
                raise RegistryError(f"{where}: there is another {name}; rename one of them")
            if not self._is_concrete(loaded):
                raise RegistryError(f"{where} is no dataclass that derives from {self.base.__name__}")
            if loaded.__name__ != name:
                raise RegistryError(
                    f"{where} must have the name of its class, {loaded.__name__}, which configuration text uses"
                )
            classes[name] = loaded
        return classes

    def _is_concrete(self, value: Any) -> bool:
        """Whether a class is a dataclass with its own ``__init__``, which bases lack."""
        return inspect.isclass(value) and issubclass(value, self.base) and "__init__" in vars(value)
