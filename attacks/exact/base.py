"""Base of attacks that solve the equations of a gradient for its examples, and the labels of these."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack
from attacks.exact.linear_layer import Read
from attacks.gradient.trial_gradients.matching import count_classes
from attacks.guesses import Reconstruction
from attacks.normalisation import denormalise, normalise
from attacks.observations import AttackError, ClientUpdate, FoundNothingError
from defenses.checks import algorithm
from defenses.module_calls import calls_of
from defenses.tensors import NamedTensors, Numbers, Update

MOST_CLASSES = 1000
"""Classes that are tried of each example."""


MOST_GREY = 64
"""Images of a guess that an attack did not find, at most: an update can cover thousands."""
BEYOND = 0.01
"""Distance from [0, 1] at which a pixel is outside and not rounded."""


def labels_of_signals(model: nn.Module, layer: nn.Module, images: Tensor, signals: Tensor) -> Tensor:
    """The class (B,) of each example, by the direction of its signal, the gradient of cross-entropy; int64, on the CPU.

    Of normalised images (B, C, H, W) and dL/dz (B, ...) at the layer's output, each up to a positive factor; ``model`` is from
    ``attackable``, and ``layer`` a module of it that is called once.
    -1 where the model has more than ``MOST_CLASSES`` classes.
    """
    classes = count_classes(model, (images.shape[1], images.shape[2], images.shape[3]), images)
    if classes > MOST_CLASSES:
        return torch.full((len(images),), -1)
    towards = signals.to(images).flatten(1)
    with torch.enable_grad(), calls_of([layer]) as calls:
        # Frozen layers have outputs without a graph, unless the images need one.
        logits = F.log_softmax(model(images.clone().requires_grad_()), 1)
        output = calls[0][2]
        cosines = []
        for number in range(classes):
            (slope,) = torch.autograd.grad(-logits[:, number].sum(), output, retain_graph=True)
            cosines.append(F.cosine_similarity(slope.flatten(1), towards, dim=1))
    return torch.stack(cosines).argmax(0).cpu()


def gradient_distance(model: nn.Module, images: Tensor, labels: Tensor, observed: Update) -> float:
    """1 - cosine of the gradient of normalised images (B, C, H, W) and the observed one, in [0, 2]: 0 where they explain it.

    By the parameters that ``observed`` names; the others are frozen.

    NaN where one of the labels (B,) is unknown, below 0; ``model`` is from ``attackable``.
    """
    if (labels < 0).any():
        return float("nan")
    parameters: NamedTensors = {
        name: value.detach().requires_grad_() for name, value in model.named_parameters() if name in observed
    }
    with torch.enable_grad():
        logits = torch.func.functional_call(model, dict(parameters), (images,))
        loss = F.cross_entropy(logits, labels.to(images.device))
        own = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    ours = torch.cat([value.flatten().double() for value in own])
    theirs = torch.cat([observed[name].flatten().double() for name in parameters])
    return float(1 - F.cosine_similarity(ours, theirs, dim=0))


@algorithm
class SolvingAttack(Attack[ClientUpdate, Reconstruction], begins_chains=True):
    """Base of attacks that solve updates one by one; where the attack does not apply, the guess is grey with a reason.

    A guess has an image for each example: what the attack did not find is grey (``Reconstruction.found``).

    Equations are few and in double precision, which most cards compute slowly: they are solved on the host.
    """

    threat = "global model, one update of one step, its number of examples; no labels, no auxiliary data"

    @property
    def threat_class(self) -> str:
        """Threat model of a server that knows what ``threat`` states: of the training no more than its number of steps."""
        return "B"

    def _attempt(self, observation: ClientUpdate, generator: torch.Generator) -> Reconstruction:
        numbers: Numbers = {}
        count = min(observation.num_examples, MOST_GREY)
        try:
            guess = self.solve(observation, generator, numbers)
        except AttackError as error:
            grey = Reconstruction.grey(count, observation.input_shape, str(error), numbers)
            return replace(grey, found=0 if isinstance(error, FoundNothingError) else None)
        solved = len(guess.images)
        others = (
            "the gradients of the others vanish beside theirs, or are multiples of theirs, as those of equal examples"
        )
        others = f"found {solved} of {observation.num_examples} examples; {others}" if solved < count else ""
        return guess.but_missing(count, guess.failure or others)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """Recover the images, or some of them; ``numbers`` receives diagnostics, also before an ``AttackError``."""
        raise NotImplementedError


def recovered(
    observation: ClientUpdate,
    read: Read,
    layer: nn.Module,
    inputs: Tensor,
    signals: Tensor,
    numbers: Numbers,
    failure: str = "",
) -> Reconstruction:
    """The guess from a layer's recovered pixels (R, C * H * W), normalised, with labels by dL/dz (R, ...) of each example.

    ``failure`` says why others are missing, if any are; ``layer`` is a module of the model that was read.
    """
    if not inputs.isfinite().all():
        raise AttackError("the equations have no finite solution")
    raw = denormalise(inputs.view(-1, *observation.input_shape), observation)
    outside = float(((raw < -BEYOND) | (raw > 1 + BEYOND)).double().mean())
    images = raw.clamp(0, 1).float()
    seen = normalise(images, observation).to(next(iter(read.gradient.values())))
    labels = labels_of_signals(read.model, layer, seen, signals)
    distance = gradient_distance(read.model, seen, labels, read.gradient)
    return Reconstruction(images, labels, numbers | {"gradient_distance": distance, "outside_share": outside}, failure)
