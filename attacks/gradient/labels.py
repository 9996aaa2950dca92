"""Labels from the gradient of the last fully connected layer, and the learning rate when the server does not know it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Attack
from attacks.gradient.trial_gradients.matching import attackable, count_classes
from attacks.guesses import Labels
from attacks.observations import AttackError, ClientUpdate, require_trained
from defenses.checks import algorithm
from defenses.module_calls import calls_of
from defenses.tensors import Update

MOST_LABELS = 1024
"""Guessed labels of a batch, the most certain first."""


@algorithm
class LabelInference(Attack[ClientUpdate, Labels], guesses="labels"):
    """Infer the classes of a batch, of up to ``MOST_LABELS``, from the signs and sizes of the last layer's gradient.

    See ``infer_labels``.
    """

    source = "Zhao 2020 (iDLG), Eq. 3-6; Wainakh 2022 (LLG), Algorithm 1"
    threat = "global model, one update, its number of examples and learning rate; no labels, no auxiliary data"

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Labels:
        """Guess ``num_examples`` classes; deterministic."""
        # Signs and proportions tell the classes: any rate serves where none is known.
        rate = 1.0 if observation.learning_rate is None else None
        guess = infer_observed_labels(observation, observation.gradient(rate))[: self._count(observation)]
        return Labels(guess.sort().values)

    def failed(self, observation: ClientUpdate, reason: str) -> Labels:
        """Unknown classes."""
        return Labels(torch.full((self._count(observation),), -1), failure=reason)

    def _count(self, observation: ClientUpdate) -> int:
        return max(min(observation.num_examples, MOST_LABELS), 0)


def infer_observed_labels(observation: ClientUpdate, gradient: Update) -> Tensor:
    """``infer_labels``, with the number of classes and typical features computed from the server's model."""
    features, (model, classes, name, layer) = None, _head(observation)
    # A layer without a bias, or with a frozen one, has no gradient that shows the features. Those of the mean image, which is zero
    # after normalisation, are a free stand-in for LLG's dummy images: more accurate than uniform noise or grey levels on digits.
    if f"{name}.bias".lstrip(".") not in gradient:
        with torch.no_grad(), calls_of([layer]) as calls:
            model(layer.weight.new_zeros(1, *observation.input_shape))
        features = calls[0][1].flatten(0, -2).mean(0)
    return infer_labels(gradient, model, observation.num_examples, classes, features)


def infer_labels(
    gradient: Update, model: nn.Module, batch: int, num_classes: int | None = None, features: Tensor | None = None
) -> Tensor:
    """Guess the classes (batch,) of a batch from the mean gradient of cross-entropy, most certain first; int64 on the CPU.

    For features a, logits W a (+ bias) and probabilities p, row i of the gradient is the mean over examples of (p_i - [y = i]) a:

        row_i = (p_i - count_i / batch) a     if all examples had the same features and probabilities.

    The rows are projected on u, an estimate of a. With a bias, whose gradient is p_i - count_i / batch exactly, u is the
    least-squares solution of row_i = db_i u, and the bias itself is one more feature. This also covers features of any sign and
    those whose sum is zero (LayerNorm). Without a trained bias, u is ``features`` (D,); without these, all ones as in iDLG, which
    assumes that features are not negative, as after ReLU or sigmoid. One example: the smallest projection is its class (iDLG).
    More: every class with a negative projection is taken once, most negative first; then, again and again, the class whose
    projection is smallest, where each label taken has raised its own by ``impact``, the share of one example (LLG).

    The layer is the last fully connected one, with ``num_classes`` outputs where that is given.

    Raises:
        AttackError: When the model has no such layer, clients do not train it, or its gradient is zero.

    Differs from LLG: where projections estimate p_i - count_i / batch itself, the impact is 1 / batch. LLG's estimate, the sum of
    the negative row sums times -(1 + 1/K) / batch, serves only with u = 1: it is too small once most classes are present.
    """
    name, layer = last_linear(model, num_classes)
    weight_key, bias_key = (f"{name}.{part}".lstrip(".") for part in ("weight", "bias"))
    bias = gradient[bias_key].double().cpu() if bias_key in gradient else None
    if bias is None:
        require_trained(gradient, "the last fully connected layer", weight_key)
    # Where the weight is frozen, the bias alone names the classes.
    rows = gradient[weight_key].double().cpu() if weight_key in gradient else torch.zeros(len(layer.weight), 0).double()
    if bias is not None:
        rows = torch.cat([rows, bias[:, None]], 1)
        features = rows.T @ bias / bias.square().sum().clamp(min=1e-300)
    if features is not None:
        features = features.double().cpu()
        signal = rows @ features / features.square().sum().clamp(min=1e-300)
        impact = torch.tensor(1.0 / batch, dtype=torch.float64)
    else:
        signal = rows.sum(1)
        impact = -signal.clamp(max=0).sum() * (1 + 1 / len(signal)) / batch
    if not signal.any():
        raise AttackError(
            f"the gradient of the last fully connected layer {name!r} is zero, so that labels cannot be inferred"
        )
    taken = [int(i) for i in signal.argsort() if signal[i] < 0][:batch]
    signal[taken] += impact
    while len(taken) < batch:
        taken.append(int(signal.argmin()))
        signal[taken[-1]] += impact
    return torch.tensor(taken)


def last_linear(model: nn.Module, num_classes: int | None = None) -> tuple[str, nn.Linear]:
    """The last ``nn.Linear`` in order of definition (of that width, if given) and its name.

    Raises:
        AttackError: When there is none.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and num_classes in (None, module.out_features)
    ]
    if not layers:
        width = "" if num_classes is None else f" with {num_classes} outputs"
        raise AttackError(f"labels are inferred from the last nn.Linear{width}, and {type(model).__name__} has none")
    return layers[-1]


def _head(observation: ClientUpdate) -> tuple[nn.Module, int, str, nn.Linear]:
    """A private copy of the global model in eval mode, its number of classes, and its last linear layer with as many outputs."""
    model = attackable(observation.model, train_mode=False)
    num_classes = count_classes(model, observation.input_shape, next(model.parameters()).detach())
    return model, num_classes, *last_linear(model, num_classes)


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
    model, num_classes, name, layer = _head(observation)
    like, key = layer.weight.detach(), f"{name}.bias".lstrip(".")
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
    _, num_classes, name, layer = _head(observation)
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
