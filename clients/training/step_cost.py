"""Cost of a pass through a model or a part of one: parameters, multiply-accumulates (MACs), peak bytes.

Counts do not depend on the machine's load. Wall-clock times are benchmarks' business.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten


@dataclass(frozen=True)
class StepCost:
    """Cost of one forward pass as measured by ``measure_step``.

    Attributes:
        parameters: Numbers in the modules' parameters and floating-point buffers, frozen ones included.
        macs: Multiply-accumulates of the forward pass in matrix products, convolutions, attention and Fourier transforms.
        training_macs: Those of one training step: three times ``macs`` where the modules are trained, since the backward pass
            has as large products for the gradients of weights and of inputs each; else ``macs``.
        peak_bytes: Parameters, buffers, and the most that was allocated at once besides: by the forward pass where the
            modules are frozen, else by forward and backward pass, with what is saved in between and the gradients.
    """

    parameters: int
    macs: int
    training_macs: int
    peak_bytes: int


def measure_step(function: Callable[[], Tensor], modules: Sequence[nn.Module], *, trained: bool) -> StepCost:
    """Run ``function``, which calls the modules (on one image for costs per image), and count its cost.

    Its images must be ready: these are not counted. If the modules are ``trained``, the backward pass runs too; no ``grad`` of a
    parameter changes. On CPUs, ``peak_bytes`` counts tensors that operators return, without the scratch space inside of them. On
    CUDA the function runs twice, and the count is the allocator's, which rounds every tensor up to 512 bytes.
    """
    held = list({id(t): t for module in modules for t in (*module.parameters(), *module.buffers())}.values())
    weights = [tensor for tensor in held if trained and tensor.requires_grad]
    cuda = held[0].device if held and held[0].is_cuda else None
    with torch.set_grad_enabled(bool(weights)):
        if cuda:
            # The first run makes CUDA's libraries allocate work space that they keep.
            _differentiate(function(), weights)
            torch.cuda.reset_peak_memory_stats(cuda)
        before = torch.cuda.memory_allocated(cuda) if cuda else 0
        with FlopCounterMode(display=False, custom_mapping=_TRANSFORMS) as counter, _Watch(held) as watch:
            made = function()
            macs = counter.get_total_flops() // 2
            _differentiate(made, weights)
    return StepCost(
        parameters=sum(tensor.numel() for tensor in held if tensor.is_floating_point()),
        macs=macs,
        training_macs=3 * macs if weights else macs,
        peak_bytes=(torch.cuda.max_memory_allocated(cuda) - before if cuda else watch.peak)
        + sum(tensor.numel() * tensor.element_size() for tensor in held),
    )


def _differentiate(made: Tensor, weights: Sequence[Tensor]) -> None:
    if weights:
        torch.autograd.grad(made, weights, torch.ones_like(made), allow_unused=True)


def _transform_flops(points: Sequence[int], axes: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any) -> int:
    """5 M log2 M real operations for a plane of M points; the transform of real numbers counts as that of complex ones."""
    whole = max(points, out_shape, key=math.prod)  # one-sided spectra of real tensors have about half of the points
    return 2 * round(2.5 * math.prod(whole) * math.log2(math.prod(whole[axis] for axis in axes)))


_TRANSFORMS = dict.fromkeys((aten._fft_c2c, aten._fft_r2c, aten._fft_c2r), _transform_flops)
"""Operators that torch does not count; as of matrix products, half of their operations are multiply-accumulates."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Keeps track of how many bytes are alive in storages that operators have allocated."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live = 0
        # References by identity: storages compare by content.
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._watch(tensor, counted=False)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._watch(tensor, counted=False)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._watch(tensor, counted=True)
        return result

    def _watch(self, tensor: Tensor, *, counted: bool) -> None:
        """Counts a storage from its first sight to its end, unless it was there before, as arguments are."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen:
            return
        size = storage.nbytes() if counted else 0
        self._live += size
        self.peak = max(self.peak, self._live)

        def end(_: Any) -> None:
            self._live -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, end)
