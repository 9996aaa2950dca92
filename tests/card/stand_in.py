"""A stand-in for a graphics card: tensors that claim a device of their own, keep their data on the host, and refuse mixed devices.

An operation raises what CUDA raises where it mixes devices, indexes a host tensor by a card's, draws with a generator of the wrong
device, or makes a NumPy array of a card's tensor. Speed, streams and rounding stay those of the processor. A process can use the
stand-in only from its first line on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CARD, HOST = torch.device("privateuseone:0"), torch.device("cpu")
NAME = "card"
aten = torch.ops.aten

MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default, aten.set_.source_Tensor}
"""Operations that may name tensors of both devices."""
INDEXING = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
}  # fmt: skip
"""Operations whose first tensor may be on the card while the indices are on the host."""
HEAVY = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "_scaled_dot_product", "linalg_")
"""Names, or beginnings of them, of operations that a card is there for."""


class CardModule:
    """What ``torch.card`` offers, as ``torch.cuda`` does."""

    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    empty_cache = staticmethod(lambda: None)
    mem_get_info = staticmethod(lambda device=None: (8 << 30, 8 << 30))
    memory_reserved = staticmethod(lambda device=None: 0)
    memory_allocated = staticmethod(lambda device=None: 0)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])
    get_rng_state = staticmethod(lambda device=None: torch.zeros(16, dtype=torch.uint8))
    set_rng_state = staticmethod(lambda state, device=None: None)


class CardTensor(Tensor):
    """A tensor on the card; ``host`` holds its data."""

    __slots__ = ["host"]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, data: Tensor) -> CardTensor:
        made: CardTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype, device=CARD
        )
        return made

    def __init__(self, data: Tensor) -> None:
        self.host = data

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"CardTensor({self.host!r})"

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory first."
            )
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


_plain_generator = torch.Generator
_card_generators: dict[int, torch.Generator] = {}
"""Address -> generator of the card, which draws as one of the processor does; none is let go, so that no address is used twice."""


class _CardGenerator(_plain_generator):  # type: ignore[misc, valid-type]
    device = property(lambda self: CARD)  # type: ignore[assignment]


class _AnyGenerator(type):
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _plain_generator)


class _Generator(metaclass=_AnyGenerator):
    """A generator of either device, by what ``torch.Generator`` is given."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        if torch.device(device).type != NAME:
            return _plain_generator(device)
        made = _CardGenerator()
        _card_generators[made._cdata] = made
        return made


class _Mode(TorchDispatchMode):
    """Shows operations on host tensors alone, too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # which would import torch's compiler
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


_counts: list[dict[str, Counter[str]]] = []


@contextmanager
def counted() -> Iterator[dict[str, Counter[str]]]:
    """Within it, counts numbers that heavy operations gave: device ("card" or "cpu") -> name of the operation -> numbers."""
    found: dict[str, Counter[str]] = {"card": Counter(), "cpu": Counter()}
    _counts.append(found)
    try:
        with _Mode():
            yield found
    finally:
        _counts.remove(found)


@contextmanager
def uncounted() -> Iterator[None]:
    """Within it, nothing is counted: for what is no part of an attack."""
    paused = _counts[:]
    _counts.clear()
    try:
        yield
    finally:
        _counts.extend(paused)


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    tensors = [one for one in flat if isinstance(one, Tensor)]
    cards = [one for one in tensors if isinstance(one, CardTensor)]
    wanted = kwargs.get("device")
    wanted = None if wanted is None else torch.device(wanted).type
    if cards:
        _require_one_device(func, args, tensors, len(cards))
    if func is aten._to_copy.default:
        on_card = isinstance(args[0], CardTensor) if wanted is None else wanted == NAME
    elif func in COPIES or func in INDEXING:
        on_card = isinstance(args[0], CardTensor)
    else:
        on_card = bool(cards) if wanted is None else wanted == NAME
    generators = [one for one in flat if isinstance(one, _plain_generator)]
    for one in generators:
        if (one._cdata in _card_generators) != on_card:  # type: ignore[attr-defined]
            wrong = ("cuda", "cpu") if on_card else ("cpu", "cuda")
            raise RuntimeError("Expected a '{}' device type for generator but found '{}'".format(*wrong))
    if not cards and not on_card:
        out = func(*args, **kwargs)
        _count("cpu", func, out)
        return out
    if func is aten._pin_memory.default:
        return args[0]
    out = _on_host(func, args, kwargs)
    _count("card" if on_card else "cpu", func, out)
    if func is aten.copy_.default:
        return args[0]
    if not on_card:
        return out
    out = tree_map(lambda x: CardTensor(x) if isinstance(x, Tensor) and not isinstance(x, CardTensor) else x, out)
    first_on_card = isinstance(args[0], CardTensor) if args and isinstance(args[0], Tensor) else bool(cards)
    return return_and_correct_aliasing(func, args, kwargs, out) if cards and first_on_card else out


def _on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    def data(one: Any) -> Any:
        return one.host if isinstance(one, CardTensor) else one

    kwargs = dict(tree_map(data, kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = HOST
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    return func(*tree_map(data, args), **kwargs)


def _require_one_device(func: Any, args: Any, tensors: Sequence[Tensor], cards: int) -> None:
    """As CUDA: single numbers of the host may enter operations of the card, but for those that join or change tensors."""
    if func in COPIES:
        return
    if func in INDEXING:
        indices = [one for one in args[1] if one is not None]
        if not isinstance(args[0], CardTensor) and any(isinstance(one, CardTensor) for one in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        values = args[2] if len(args) > 2 else None
        if (
            isinstance(args[0], CardTensor)
            and isinstance(values, Tensor)
            and values.dim()
            and not isinstance(values, CardTensor)
        ):
            raise RuntimeError(f"{MIXED} ({func}, values)")
        return
    joins = func in (aten.cat.default, aten.stack.default)
    changes = func._schema.name.endswith("_") and not isinstance(tensors[0], CardTensor)
    strays = any(one.dim() > 0 and not isinstance(one, CardTensor) for one in tensors)
    if strays or (len(tensors) > cards and (joins or changes)):
        raise RuntimeError(f"{MIXED} ({func})")


def _count(device: str, func: Any, out: Any) -> None:
    name = func._schema.name.removeprefix("aten::")
    if (
        name != "linalg_vector_norm"
        and _counts
        and any(name == heavy or (heavy.endswith("_") and name.startswith(heavy)) for heavy in HEAVY)
    ):
        numbers = sum(one.numel() for one in tree_flatten(out)[0] if isinstance(one, Tensor))
        for found in _counts:
            found[device][name] += numbers


def install() -> None:
    """Make the card known to torch, in this process from now on."""
    _setup_privateuseone_for_python_backend(NAME, CardModule())
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.Generator = _Generator  # type: ignore[assignment, misc]
    torch.tensor, torch.as_tensor = _tensor, _as_tensor
    # What makes tensors of nothing: all else gets a tensor of the card, which knows what to do.
    _library.fallback(lambda func, *args, **kwargs: _dispatch(func, args, kwargs), "PrivateUse1")


_library = torch.library.Library("_", "IMPL")
_plain_tensor, _plain_as_tensor = torch.tensor, torch.as_tensor


def _tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    made = _plain_tensor(data, dtype=dtype)
    return (made if device is None else made.to(device)).requires_grad_(requires_grad)


def _as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    made = data if isinstance(data, Tensor) else _plain_as_tensor(data, dtype=dtype)
    return made if device is None and dtype is None else made.to(device=device or made.device, dtype=dtype)
