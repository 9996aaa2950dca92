"""The client's learning rate, when the server does not know it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.gradient.labels import last_linear
from attacks.gradient.trial_gradients.matching import attackable, count_classes
from attacks.observations import AttackError, ClientUpdate


def estimate_learning_rate(observation: ClientUpdate, labels: Tensor) -> float:
    """Learning rate of plain SGD, from the bias b of the last fully connected layer, and the classes (B,) in any order.

    The gradient of cross-entropy by that bias is the mean over examples of softmax(logits) minus the share of each class, whatever
    the images are. With p the probabilities of the mean image, which is zero after normalisation, standing in for the mean of
    softmax, and e = p - counts / batch + weight_decay * b,

        delta_b = -lr * e    =>    lr = -<delta_b, e> / <e, e>

    Exact if every example had the probabilities p, as at an initialisation whose logits hardly depend on the image. A trained
    model is sure of the right classes, so that the true gradient is smaller than e and the estimate far too low: use it on updates
    of the first round. With all classes in equal shares e is small and the estimate unsure. Several local steps are divided out,
    which is right to first order only. A clipped update gives the clipped rate.

    Raises:
        AttackError: When there is no such bias, in the model or the update; when ``labels`` are not classes; when the bias hardly
            moved or moved the wrong way.

    Source: the gradient of Zhao et al. 2020 (iDLG), Eq. 3, solved for the learning rate by least squares; our own.
    """
    model = attackable(observation.model, train_mode=False)
    like = next(model.parameters()).detach()
    num_classes = count_classes(model, observation.input_shape, like)
    name, layer = last_linear(model, num_classes)
    key = f"{name}.bias".lstrip(".")
    if layer.bias is None or key not in observation.update:
        raise AttackError(f"the learning rate is estimated from the bias of {name!r}, which is missing")
    delta = observation.update[key].detach().cpu().double()
    if delta.shape != (num_classes,) or not delta.isfinite().all():
        raise AttackError(f"the update of {key!r} must be {num_classes} finite numbers, got shape {tuple(delta.shape)}")
    if not len(labels) or labels.min() < 0 or labels.max() >= num_classes or observation.local_steps < 1:
        raise AttackError(f"a learning rate needs classes of 0 .. {num_classes - 1} and at least one local step")
    with torch.no_grad():
        # In eval mode: one image has no batch statistics.
        typical = model(like.new_zeros(1, *observation.input_shape))[0].softmax(0).cpu().double()
    shares = F.one_hot(labels.detach().cpu().long(), num_classes).double().mean(0)
    error = typical - shares + observation.weight_decay * layer.bias.detach().cpu().double()
    rate = float(
        -(delta @ error) / error.square().sum().clamp(min=1e-300) / observation.local_steps / observation.step_length
    )
    if not 0 < rate < float("inf"):
        raise AttackError(f"the bias of {name!r} moved as if the learning rate were {rate:g}; it must be positive")
    return rate


def exact_learning_rate(observation: ClientUpdate) -> float:
    """Learning rate of one step of SGD on one example, solved from the last fully connected layer, and checked by it.

    With e = softmax(W h + b) - onehot(y) and a step of length lr, cross-entropy moves the layer by

        delta_b = -lr e,    delta_W = -lr e h^T    =>    h = delta_W^T delta_b / |delta_b|^2,

    so that the features h are known, then e, then lr. The C entries of delta_b and the entries of delta_W outnumber the unknowns:
    label smoothing, another loss, noise, several steps or several examples leave a remainder, and the rate is refused. A clipped
    update gives the clipped rate, which is the one that its gradient needs.

    Raises:
        AttackError: When the update is not of one step on one example without weight decay. When the layer has no bias, or fewer
            than three classes, as two always fit. When more than 1 % of ``delta_W`` or ``delta_b`` remains unexplained.

    Source: the outer product of Zhao et al. 2020 (iDLG), Eq. 3 and 5; the rate from it is our own.
    """
    if (observation.num_examples, observation.local_steps) != (1, 1) or observation.weight_decay:
        raise AttackError("the learning rate follows exactly only from one step on one example without weight decay")
    model = attackable(observation.model, train_mode=False)
    num_classes = count_classes(model, observation.input_shape, next(model.parameters()).detach())
    name, layer = last_linear(model, num_classes)
    keys = [f"{name}.{part}".lstrip(".") for part in ("weight", "bias")]
    if layer.bias is None or num_classes < 3 or not all(key in observation.update for key in keys):
        raise AttackError(f"the learning rate needs the weight and the bias of {name!r}, and at least three classes")
    moved, delta = (observation.update[key].detach().cpu().double() for key in keys)
    features = delta @ moved / delta.square().sum().clamp(min=1e-300)
    logits = layer.weight.detach().cpu().double() @ features + layer.bias.detach().cpu().double()
    error = logits.softmax(0)
    error[delta.argmax()] -= 1
    rate = float(-(delta @ error) / error.square().sum().clamp(min=1e-300))
    unexplained = (
        (delta + rate * error).norm() / delta.norm(),
        (moved - delta[:, None] * features).norm() / moved.norm(),
    )
    if not (0 < rate < float("inf") and max(unexplained) <= 0.01):  # a NaN of an update of zeros is not, either
        raise AttackError(f"the update of {name!r} is not that of one step of cross-entropy on one example")
    return rate / observation.step_length
