"""An app's model and messages that may hold a part of it: the rest is frozen, and is what the app's ``model`` builds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from attacks.observations import trained_parameters
from defenses.fitting import sha256_of
from defenses.tensors import NamedTensors, Tensors

UNSENT, FROZEN_DIGEST = "unsent", "frozen"
"""In the configuration of ``query.setup``: names of frozen parameters that messages leave out, and a digest of their values."""


class ModelMismatchError(ValueError):
    """Arrays or frozen parameters that do not belong to one and the same model."""


@dataclass(frozen=True)
class AppModel:
    """What an app's ``model`` builds, for reading the arrays of messages.

    Attributes:
        state: Its ``state_dict()``.
        trained: Names of the parameters that require gradients, or of all where none does (``trained_parameters``).
        frozen: Names of the other parameters, whose values every build of the app's model is assumed to share.
    """

    state: NamedTensors
    trained: tuple[str, ...]
    frozen: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module) -> AppModel:
        """Of a model as it was built."""
        state, counted = model.state_dict(), trained_parameters(model)
        named = [name for name, _ in model.named_parameters() if name in state]
        trained = tuple(name for name in named if name in counted)
        return cls(state, trained, tuple(name for name in named if name not in counted))

    def named(self, arrays: NamedTensors) -> Tensors:
        """Arrays of a message, in their order, by the names of ``state``; by their own names where they do not fit.

        They fit if they have all trained parameters by their names in ``state``. They fit as the names of one module of the model,
        such as those of ``model.head.state_dict()``, if every shape agrees; of several such modules, the one with all trained
        parameters counts. Where none has all, one name that is in ``state`` makes all names those of ``state``.
        With other names (lists of arrays have 0, 1, 2) they fit as the whole state or as the trained parameters, in order, if
        every shape agrees.

        Raises:
            ModelMismatchError: When the arrays fit several modules that have all trained parameters.
        """
        shapes = [tuple(array.shape) for array in arrays.values()]
        if not arrays or (set(self.trained) <= arrays.keys() and list(map(self._shape, arrays)) == shapes):
            return dict(arrays)
        first, own = next(iter(arrays)), list(arrays)
        modules = {
            at: [at + name for name in own]
            for at in (name.removesuffix(first) for name in self.state if name.endswith(f".{first}"))
            if [self._shape(at + name) for name in own] == shapes
        }
        complete = [at for at, names in modules.items() if set(self.trained) <= set(names)]
        if len(complete) > 1:
            raise ModelMismatchError(
                f"arrays {', '.join(map(repr, list(arrays)[:3]))} fit several modules of the model, "
                f"{' and '.join(repr(at.removesuffix('.')) for at in complete)}; send them by their names in the whole model"
            )
        in_order = [
            names for names in (list(self.state), list(self.trained)) if list(map(self._shape, names)) == shapes
        ]
        by_name = [own] if self.state.keys() & arrays.keys() else []
        candidates = [*(modules[at] for at in complete), *by_name, *in_order, *modules.values(), own]
        return dict(zip(candidates[0], arrays.values(), strict=True))

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.state[name].shape) if name in self.state else None

    def whole(self, named: NamedTensors) -> Tensors:
        """``named`` arrays with the frozen parameters that are missing."""
        return {**{name: self.state[name] for name in self.unsent(named)}, **named}

    def unsent(self, named: Iterable[str]) -> tuple[str, ...]:
        """The frozen parameters that are missing in the names."""
        sent = set(named)
        return tuple(name for name in self.frozen if name not in sent)

    def digest(self, names: Iterable[str]) -> str:
        """A digest of tensors of ``state``, equal for equal values; "" for a name that it does not have."""
        chosen = set(names)
        held = {name: value for name, value in self.state.items() if name in chosen}
        return sha256_of(held).hex() if len(held) == len(chosen) else ""
