"""Trial of a defence that clips the gradient of each example: its sum against gradients of one example at a time.

Opacus computes gradients per example layer by layer. They are wrong where a layer is used in a way that it does not know, such as
a weight that also acts outside of its own layer. Then one example can move the sum by more than the clipping norm, and the stated
epsilon is false. So a copy of the model is tried before it is trained: on random weights and examples, which follow from constants
and say nothing about a client.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from defenses.functional import clip_factors
from defenses.tensors import Loss, NamedTensors, Shape

SCALES = (0.3, 1.0, 0.03, 0.1, 0.5)
"""Sizes of the examples' pixels: their gradients have different lengths, of which the clipping norm lies below two."""
BATCHES = ((False, slice(None)), (True, slice(1, None)))
"""Whether gradients are clipped, and of which examples. Without clipping, a difference shows the layer at fault. Then all but one:
an example whose share depends on the others moves one of the two sums."""
TOLERANCE, FLOOR = 1e-3, 1e-5
"""Difference that counts as rounding, over the longest gradient of a weight and over that of all weights together."""
LEAST_SIZE = 0.01
"""Root mean square of each weight in the trial, at least."""
DRAWS = ("bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like", "uniform_", "normal_")
"""Operations of torch that draw."""
WAY_OUT = (
    "allowed: layers whose inputs and outputs have the examples as first axis, weights that act in their own layer alone, "
    "padding_mode='zeros' (put a padding layer before a convolution that needs another), no operation in place on a layer's "
    "output, and no buffer that a forward pass changes (track_running_stats=False)"
)
"""What a model of one's own can do about gradients per example that are wrong."""

ClippedSum = Callable[[nn.Module, Tensor, Tensor, Loss, float], tuple[NamedTensors, NamedTensors]]
"""(model, images, targets, mean loss, clipping norm) -> by trained parameter, the sum of clipped gradients that a defence makes,
and the lengths (B,) of the examples' gradients that it goes by."""


def clipping_fault(model: nn.Module, input_shape: Shape, clipped_sum: ClippedSum) -> str:
    """Reason why ``clipped_sum`` is not the sum of the clipped gradients of a model; "" if it is.

    Args:
        model: Stays as it is; it is tried in train mode, on the CPU.
        input_shape: Of one image, (C, H, W).
        clipped_sum: May change the copy that it receives.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine several would wait for each other, on operations as small as these
    try:
        with torch.random.fork_rng([]):  # a forward pass may draw
            why = _fault(model, input_shape, clipped_sum, torch.float32)
            return why and _fault(model, input_shape, clipped_sum, torch.float64)  # which tells a fault from rounding
    finally:
        torch.set_num_threads(threads)


def _fault(model: nn.Module, input_shape: Shape, clipped_sum: ClippedSum, dtype: torch.dtype) -> str:
    try:
        model, generator = copy.deepcopy(model).to("cpu", dtype).train(), torch.Generator().manual_seed(0)
    except RuntimeError:
        return "the model cannot be copied: use torch.nn.utils.parametrizations in place of torch.nn.utils.weight_norm"
    _vary(model, generator)
    scales = torch.tensor(SCALES, dtype=dtype).view(-1, *[1] * len(input_shape))
    images = torch.randn(len(scales), *input_shape, generator=generator).to(dtype) * scales
    targets = torch.randn(len(scales), 1, generator=generator).to(dtype)
    alone = copy.deepcopy(model)
    try:
        singles = [_gradient(alone, image[None], target[None]) for image, target in zip(images, targets, strict=True)]
    except Exception as error:  # of a model of one's own
        return f"the model cannot be trained on one random example{_place(error, alone, 1)}: {_first_line(error)}"
    before, after = ({**dict(module.named_buffers()), **dict(module.named_parameters())} for module in (model, alone))
    if moved := [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]:
        return f"a forward pass changes {_named(moved)}, which carries examples to later steps outside of the bound"
    gradients = {name: torch.stack([single.pop(name) for single in singles]) for name in list(singles[0])}
    lengths = {name: rows.reshape(len(rows), rows[0].numel()).norm(dim=1) for name, rows in gradients.items()}
    together = torch.stack(list(lengths.values())).norm(dim=0)
    longest, second, third, *_ = together.sort(descending=True).values.tolist()
    norm = math.sqrt(second * third) or longest / 2
    if not (norm > 0 and longest < math.inf):
        return f"random examples have gradients of the lengths {longest:.2g}, {second:.2g}, {third:.2g}"
    for clips, at in BATCHES:
        most = norm if clips else 2 * longest
        tried, factors = copy.deepcopy(model), clip_factors(together[at], most)
        try:
            sums, by_weight = clipped_sum(tried, images[at], targets[at], _distance, most)
        except Exception as error:  # of a layer that Opacus cannot watch
            return f"gradients per example cannot be computed{_place(error, tried, len(factors))}: {_first_line(error)}"
        wrong = []
        for name, rows in gradients.items():
            allowed = TOLERANCE * float(lengths[name].max()) + FLOOR * longest
            differences = (sums[name] - torch.einsum("i,i...", factors, rows[at]), by_weight[name] - lengths[name][at])
            wrong += [] if all(float(difference.norm()) <= allowed for difference in differences) else [name]
        if wrong:
            return f"{_named(wrong)}: the clipped sum of random examples is not that of their own gradients"
    return ""


@torch.no_grad()
def _vary(model: nn.Module, generator: torch.Generator) -> None:
    """Random weights: layers that begin at or near zero would hide what follows them, and a server may send others."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.is_floating_point():
            draws, noise = (
                draw(weight.shape, generator=generator).to(weight.dtype) for draw in (torch.rand, torch.randn)
            )
            weight.copy_(weight * (0.5 + draws) + 0.05 * noise * (weight == 0))
            size = weight.square().mean().sqrt()
            weight.mul_((LEAST_SIZE / size).clamp(min=1.0)) if 0 < size < math.inf else None


def _gradient(model: nn.Module, image: Tensor, target: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    _distance(model, image, target).backward()  # type: ignore[no-untyped-call]
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if sparse := [name for name, weight in trained.items() if weight.grad is not None and weight.grad.is_sparse]:
        raise ValueError(f"{_named(sparse)} with sparse gradients; use sparse=False")
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trained.items()}


def _distance(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    with _WithoutDraws():  # type: ignore[no-untyped-call]
        outputs: Tensor = model(images)
    if outputs.shape[:1] != images.shape[:1]:
        raise ValueError(f"the model returns the shape {tuple(outputs.shape)} for {len(images)} images")
    distance: Tensor = (outputs.flatten(1) - targets).square().mean()
    return distance


class _WithoutDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it without types
    """Random draws of a forward pass, as of dropout, are constants: else two passes of one example would differ."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.fill_(0.5) if func.overloadpacket.__name__ in DRAWS else made


def _place(error: BaseException, model: nn.Module, count: int) -> str:
    """Where an error comes from: weights with gradients of another number of examples, else the innermost layer that ran."""
    held = {name: getattr(p, "_norm_sample", getattr(p, "grad_sample", None)) for name, p in model.named_parameters()}
    if odd := [name for name, sample in held.items() if isinstance(sample, Tensor) and len(sample) != count]:
        return f" at {_named(odd)}"
    layer = layer_of(error, model)
    return f" in {layer}" if layer else ""


def layer_of(error: BaseException, model: nn.Module) -> str:
    """Name of the innermost layer of a model that ran when an error arose; "" for none."""
    names, layer, trace = {id(module): name for name, module in model.named_modules()}, "", error.__traceback__
    while trace:
        for local in ("self", "module"):  # the latter in hooks
            layer = names.get(id(trace.tb_frame.f_locals.get(local)), "") or layer
        trace = trace.tb_next
    return layer


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
