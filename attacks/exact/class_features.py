"""Inputs of the last linear layer for each example of a batch whose classes are all different."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attacks.exact.linear_layer import LayerGradient
from attacks.observations import AttackError


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
        raise AttackError("does not apply: the last layer has no bias, whose gradient is needed")
    present = gradient.bias < 0
    count = int(present.sum())
    if count != num_examples:
        raise AttackError(
            f"does not apply: {count} classes have a negative gradient, for {num_examples} examples: two examples share a class, "
            "so that only the sum of their features is known, or the model is sure of a wrong class"
        )
    if bool(present.all()):
        raise AttackError(f"does not apply: all {count} classes have an example; a class without an example is needed")
    rows, bias = num_examples * gradient.weight, num_examples * gradient.bias
    mean = rows[~present].sum(0) / bias[~present].sum()
    shares = bias[present] + 1
    return ClassFeatures(shares[:, None] * mean - rows[present], present.nonzero().flatten(), float(shares.max()))
