"""Published gradient inversions: subclasses that only change defaults.

``InvertingGradients`` and ``DLG`` are tuned to be strong at a cost that an audit can pay in every round. The other six are the
attacks of the ATS paper (section 6 and released configuration), untuned, for comparison with its tables.
"""

from attacks.gradient.inversion import GradientInversion, LabelSource, Minimiser, SecondOrder
from defenses.checks import algorithm


@algorithm
class InvertingGradients(GradientInversion):
    """Gradient inversion by signed Adam on the cosine distance, with total variation: the strongest here on ReLU networks.

    Differs from the paper, which runs 24,000 iterations and keeps the prior at 1e-1 to 1e-6, by experiment: the prior starts
    at 1e-2 and shrinks with the step size. Natural images need the strong prior at the start (about 10 dB over 1e-4 after 600
    iterations), sharp ones (digits) lose 20 dB to it if it stays. Running averages that came with the update are matched, too:
    batch_norm_prior=0 leaves them out, as the paper does. Source of that prior: Yin 2021 (GradInversion), Eq. 9. With
    normalise_by="sent" it recovers more of convnet and resnet20, and less of a network of three layers.
    """

    source = "Geiping 2020 (Inverting Gradients), Eq. 4"

    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True
    batch_norm_prior: float = 10.0


@algorithm
class DLG(GradientInversion):
    """Gradient inversion by L-BFGS on the squared distance, with joint labels: near exact on smooth (sigmoid, tanh) networks.

    Differs from the paper: a line search, without which a bad step can end the attack, and 400 evaluations in place of 300 steps of
    up to 20 (neither is always the stronger); and two starts, because joint labels can settle on a wrong class (on a linear layer
    every second start does). On colour photographs 400 evaluations have not converged. With labels="known", boxed=True it is
    stronger still.
    """

    source = "Zhu 2019 (DLG), Algorithm 1"

    cost: str = "l2"
    optimizer: Minimiser = "lbfgs"
    signed: bool = False
    learning_rate: float = 1.0
    iterations: int = 400
    restarts: int = 2
    total_variation: float = 0.0
    boxed: bool = False
    labels: LabelSource = "joint"
    step_decay: bool = False
    line_search: bool = True


@algorithm
class AdamCosine(GradientInversion):
    """Gradient inversion by signed Adam on the cosine distance."""

    source = "Gao 2021 (ATS), section 6, Adam+Cosine"

    iterations: int = 4800


@algorithm
class AdamL1(AdamCosine):
    """Gradient inversion by signed Adam on the sum of absolute differences."""

    source = "Gao 2021 (ATS), section 6, Adam+L1"

    cost: str = "l1"


@algorithm
class AdamL2(AdamCosine):
    """Gradient inversion by signed Adam on the sum of squared differences."""

    source = "Gao 2021 (ATS), section 6, Adam+L2"

    cost: str = "l2"


@algorithm
class SGDCosine(AdamCosine):
    """Gradient inversion by signed SGD with Nesterov momentum on the cosine distance, as in the released configuration."""

    source = "Gao 2021 (ATS), section 6, SGD+Cosine"

    optimizer: Minimiser = "sgd"
    learning_rate: float = 0.01


@algorithm
class LBFGSCosine(GradientInversion, quick={"iterations": 4, "restarts": 1}):
    """Gradient inversion by L-BFGS on gradient signs: fixed step 1e-4, 300 steps of up to 20 iterations, 16 restarts.

    Signs differ between two points in few entries, so that quasi-Newton pairs carry little information and progress is slow.
    """

    source = "Gao 2021 (ATS), section 6, LBFGS+Cosine"

    optimizer: Minimiser = "lbfgs"
    learning_rate: float = 1e-4
    iterations: int = 300
    restarts: int = 16
    step_decay: bool = False
    second_order: SecondOrder = "exact"  # Curvature over steps of 1e-4 would be that of a finite difference's rounding.


@algorithm
class LBFGSL2(LBFGSCosine):
    """``LBFGSCosine`` on the sum of squared differences: no signs, no clamping, ten times the weight of total variation.

    "DLG" in the paper's tables; ``DLG`` here follows Zhu 2019. The released configuration has iterations=50, restarts=2.
    """

    source = "Gao 2021 (ATS), section 6, LBFGS+L2"

    cost: str = "l2"
    signed: bool = False
    total_variation: float = 1e-3
    boxed: bool = False
