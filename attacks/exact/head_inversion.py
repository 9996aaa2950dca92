"""Recovery of a linear layer's inputs behind a convolutional network, and of images with these features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE
from attacks.descent import StepRule, minimise
from attacks.exact.base import SolvingAttack, gradient_distance, labels_of_signals
from attacks.exact.linear_layer import LayerGradient, Read, low_rank
from attacks.exact.spear_plus_plus import SpearPlusPlus
from attacks.guesses import Reconstruction
from attacks.image_measures import total_variation
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate, NotApplicableError
from defenses.checks import Steps, algorithm
from defenses.module_calls import calls_of
from defenses.tensors import Numbers

TOTAL_VARIATION = 1e-2
"""Weight of the image prior."""
LEARNING_RATE = 0.05
"""For images in [0, 1], falling to zero along a half cosine."""


@dataclass(frozen=True)
class ClassFeatures:
    """Features of examples with distinct classes, recovered from a classifier's head.

    Attributes:
        features: (B, N), of each example.
        labels: (B,), int64, its class.
        leak: The largest s_k: how much of all examples' features was in the row of one, and was taken for that many means. Errors
            are at most of this size times the features' differences; at 0 there are none.
    """

    features: Tensor
    labels: Tensor
    leak: float


def class_features(gradient: LayerGradient, num_examples: int) -> ClassFeatures:
    """Solve softmax and cross-entropy for the features of each class, to first order in the examples' differences in p.

    With p_ik the probability of class k for example i, the gradient of the last layer, whose outputs are the logits, times B is

        row k of B dL/dW = sum_i p_ik a_i - (sum of a_i of class k),     B dL/db_k = sum_i p_ik - (examples of class k).

    Where one example alone has class k, B dL/db_k + 1 = sum_i p_ik =: s_k, and a_k = sum_i p_ik a_i - row k. Classes c that no
    example has give a mean of features, m = sum_c row_c / sum_c B dL/db_c, with weights w_i = sum_c p_ic over their sum. Then
    sum_i p_ik a_i = s_k m + sum_i (p_ik - s_k w_i) a_i, of which the last part is left out. It vanishes where all examples share
    out their probabilities alike, as nearly in a network before training, and where features agree.

    Raises:
        AttackError: When it has no bias; when fewer classes than examples have a negative gradient, that is, some class has two
            examples, or s_k >= 1; when no class is left over.

    Source: the gradient of softmax and cross-entropy; negative rows tell classes as in Zhao, Mopuri, Bilen, "iDLG: Improved Deep
    Leakage from Gradients", 2020, section 3.1; the separation is ours.
    """
    if gradient.bias is None:
        raise NotApplicableError("the last layer has no bias, whose gradient is needed")
    present = gradient.bias < 0
    count = int(present.sum())
    if count != num_examples:
        raise NotApplicableError(
            f"{count} classes have a negative gradient, for {num_examples} examples: two examples share a class, "
            "so that only the sum of their features is known, or the model is sure of a wrong class"
        )
    if bool(present.all()):
        raise NotApplicableError(f"all {count} classes have an example; a class without an example is needed")
    rows, bias = num_examples * gradient.weight, num_examples * gradient.bias
    mean = rows[~present].sum(0) / bias[~present].sum()
    shares = bias[present] + 1
    return ClassFeatures(shares[:, None] * mean - rows[present], present.nonzero().flatten(), float(shares.max()))


@algorithm
class HeadInversion(
    SolvingAttack, effort={"iterations": "iterations"}, selection=OWN_OBJECTIVE, quick={"iterations": 40}
):
    """Solve for the input features of the first linear layer, then optimise images until they have these features.

    The features a_i are exact: for one example a = (dL/dW)_j / (dL/db)_j, for several as of ``SpearPlusPlus`` if a ReLU follows the
    layer. With phi the network below the layer, at the weights that the client started from,

        argmin_x  |phi(x) - a|^2 / (numel(a) Var(a)) + total_variation * TV(x),    for each image separately.

    phi loses information (pooling, strides), more the deeper it is: the features are exact and the images are not.

    If the only linear layer is the last, without a ReLU after it, features of several examples follow from their classes
    (``class_features``). This is approximate, and needs distinct classes of the examples and a class without an example.

    Reports "does not apply" if no linear layer sees one vector of each example, if the first sees the pixels themselves, and for an
    update of several steps. For two or more examples, the conditions of ``SpearPlusPlus`` or distinct classes are needed too. An
    untrained network has nearly the same features for all images, so that only a part may be found (the failure states how many).

    Diagnostics: those of ``SpearPlusPlus``; ``feature_loss`` (mean squared error of the features) and ``relative_loss`` (divided by
    their variance; far from 0 the descent failed); ``leak`` (see ``class_features``); ``gradient_distance`` (1 - cosine of the
    gradients of guess and update).

    Attributes:
        iterations: Steps of Adam (AMSGrad). The lowest objective is returned.
    """

    source = (
        "features: Phong et al. 2017, section 3, and Bakarsky et al. 2025 (SPEAR++); their inversion: Kariyappa et al. "
        "2023 (Cocktail Party Attack), section 5, after Mahendran and Vedaldi 2015, Eq. 1"
    )

    iterations: Steps = 600

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation)
        layer = read.first_layer()
        if layer.sees_pixels:
            raise NotApplicableError(f"layer {layer.name!r} sees the pixels, for which SpearPlusPlus solves")
        labels, failure = None, ""
        if observation.num_examples > 1 and layer.is_head:
            low_rank(read.of_layer(layer), observation.num_examples)  # refuses noise
            known = class_features(read.of_layer(layer), observation.num_examples)
            numbers["leak"] = known.leak
            features, labels = known.features, known.labels
        else:
            factors = SpearPlusPlus().factors(read, layer, observation, generator, numbers)
            features, failure = factors.inputs, factors.failure
        features = features.to(next(iter(read.gradient.values())))
        spread = features.var().clamp_min(1e-12)

        def errors(images: Tensor) -> Tensor:
            with calls_of([layer.module]) as calls:
                read.model(normalise(images, observation))
            squares: Tensor = (calls[0][1] - features).square()
            return squares.mean(1)

        def objective(images: Tensor) -> Tensor:
            return errors(images) / spread + TOTAL_VARIATION * total_variation(images)

        start = torch.full((len(features), *observation.input_shape), 0.5).to(features)
        with torch.enable_grad():
            images, _ = minimise(objective, start, self.iterations, StepRule(LEARNING_RATE, in_range=True))
        loss = float(errors(images.detach()).mean().detach())
        numbers |= {"feature_loss": loss, "relative_loss": loss / float(spread)}
        seen = normalise(images, observation)
        if labels is None:
            labels = labels_of_signals(read.model, layer.module, seen, factors.signals)
        numbers["gradient_distance"] = gradient_distance(read.model, seen, labels, read.gradient)
        return Reconstruction(images.float().cpu(), labels, numbers, failure)
