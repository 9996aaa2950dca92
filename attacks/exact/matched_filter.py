"""A matched filter: the picture that noise left in the gradient of a layer on pixels, read along the directions of a class."""

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import Knowledge, learned_field
from attacks.exact.base import SolvingAttack
from attacks.exact.linear_layer import LinearLayer, Read, called
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate, NotApplicableError
from defenses.base import Batch
from defenses.checks import algorithm
from defenses.tensors import Numbers

PER_CLASS = 60
"""Images of the server's own that a class's directions are averaged over, at most."""


@algorithm
class MatchedFilter(SolvingAttack, needs_auxiliary=True, needs_classes=True):
    """Read images out of noise that is too strong to search: the attack that knows DP-SGD.

    The layer's gradient is dL/dW = sum_i d_i x_i^T + N, where d_i = dL/dz of image i has been clipped and N is white noise. Images
    of a class have similar d. Let u_c be the mean direction of d over the server's own images of class c, at the global model. Then
    u_c^T dL/dW is the sum of the pictures of class c, each times u_c^T d_i, and noise of the strength of one entry of N. If d_i
    were along u_c, no weights of the rows would be better. Mean and contrast are lost, and the guess fills the range from 0 to 1.

    Classes that the server does not know are those whose mean gradient over its own images has the largest inner products with
    the update, each once. Several steps are read as one.

    Reports "does not apply" where no linear layer sees the pixels, and where the server's images of all classes leave no gradient.

    Attributes:
        learned: The server's own examples.

    Source: the filter of largest signal-to-noise ratio, North 1943; d by class and the choice of classes are ours.
    """

    source = "North, RCA Laboratories PTR-6C 1943 (matched filter); directions by class are ours"
    threat = "global model, one update, its number of examples; images of its own with classes"

    learned: Batch | None = learned_field()

    @property
    def threat_class(self) -> str:
        """Threat model of a server with examples of its own."""
        return "D"

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the server's examples."""
        return replace(self, learned=knowledge.auxiliary)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation, several_steps=True)
        layer = read.on_pixels()
        directions, products = self._by_class(read, layer, observation)
        weight = read.of_layer(layer).weight
        if not weight.any():
            raise NotApplicableError("the gradient of the layer on the pixels is zero")
        wanted = observation.num_examples
        labels = products.argsort(descending=True)[:wanted] if observation.labels is None else observation.labels.cpu()
        labels = labels[(labels >= 0) & (labels < len(products))]
        labels = labels[products[labels].isfinite() & (directions[labels].norm(dim=1) > 0)]
        if not len(labels):
            raise NotApplicableError("no image of the server of a class of the update leaves a gradient")
        filtered = directions[labels] @ weight
        why = "one of each class" if observation.labels is None else "those of classes with a gradient"
        missing = f"found {len(labels)} of {wanted} examples: {why}" if len(labels) < wanted else ""
        low, high = filtered.aminmax(dim=1, keepdim=True)
        pictures = (filtered - low) / (high - low).clamp_min(torch.finfo(filtered.dtype).tiny)
        return Reconstruction(pictures.view(-1, *observation.input_shape).float(), labels, numbers, missing)

    def _by_class(self, read: Read, layer: LinearLayer, observation: ClientUpdate) -> tuple[Tensor, Tensor]:
        """Rows u_c (K, M), and inner products of the update with unit mean gradients (K,): NaN and -inf without a trace."""
        assert self.learned is not None
        classes = self.learned.targets.argmax(1)
        directions = torch.full((self.learned.targets.shape[1], layer.module.out_features), torch.nan).double()
        products = torch.full((len(directions),), -torch.inf).double()
        parameters = {name: value for name, value in read.model.named_parameters() if name in read.gradient}
        like = next(iter(read.gradient.values()))
        for label in sorted(set(classes.tolist())):
            images = normalise(self.learned.images[classes == label][:PER_CLASS].to(like), observation)
            if len(images) < 2 and any(hasattr(module, "running_mean") for module in read.model.modules()):
                continue  # batch statistics need two
            with torch.enable_grad():
                logits, calls = called(read.model, images.requires_grad_())
                loss = F.cross_entropy(logits, torch.full((len(images),), label, device=images.device), reduction="sum")
                signals, *mean = torch.autograd.grad(
                    loss, [calls[layer.name][0][2], *parameters.values()], materialize_grads=True
                )
            directions[label] = F.normalize(F.normalize(signals.double().cpu()).mean(0), dim=0)
            length = torch.cat([value.flatten() for value in mean]).norm()
            inner = sum((value * read.gradient[name]).sum() for name, value in zip(parameters, mean, strict=True))
            if length > 0:  # else the model is sure of this class, and its images leave no trace
                products[label] = inner / length
        return directions, products
