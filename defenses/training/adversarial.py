"""Adversarial training of the client half of a split model against a simulated attacker."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from defenses.base import EdgeTrainingDefense
from defenses.checks import ScaleOrNone, algorithm
from defenses.random_draws import spawned

WIDTH = 64
"""Length of a token inside of G'."""
DEPTH = 2
"""Transformer blocks of G'."""
HEADS = 4
"""Attention heads of a block."""


class PatchDecoder(nn.Module):
    """G': a transformer from smashed data to the images' patches, (B, N, D) -> (B, N, V) in (0, 1); positions belong to slots."""

    def __init__(self, num_tokens: int, dim: int, patch_values: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(1, num_tokens, WIDTH))
        self.blocks = nn.Sequential(
            *(
                # Without dropout, so that a forward pass needs no randomness.
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
                for _ in range(DEPTH)
            )
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, patch_values)

    def forward(self, features: Tensor) -> Tensor:
        """Pixels in (0, 1) of the patch that each slot of the image shows."""
        tokens = self.blocks(self.embed(features) + self.positions)
        # Pixels are bounded, and so must be the loss that the client maximises: else it could grow without end.
        return torch.sigmoid(self.head(self.norm(tokens)))


@algorithm
class AdversarialTraining(EdgeTrainingDefense):
    """Train the client half to mislead a decoder G', which the client trains at the same time to recover the images.

        min over F, F', max over G'   L_task(F'(F(X)), Y) - w MSE(G'(F(X)), X)

    The defence resists only the simulated attacker, and only once Eq. 9 is near a saddle point. Features sent early in
    training are as unprotected as without a defence (the paper's Table V). Attack early rounds as well as the last round,
    with a decoder that is trained on the features of that round.

    Args:
        weight: w, weight of the reconstruction loss against the task loss; 0 trains G' without any effect.

    The paper gives neither w nor the size and training of G'. The "Adv" of its Table I (privacy as without a defence) is
    the snapshot after 1000 iterations of Table V (MSE 0.014), not the converged defence (0.373). Here w is 1 unless given,
    and G' takes one step with each step of the client half.
    """

    weight: ScaleOrNone = 1.0

    always_shown = ("weight",)
    source = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 9 (baseline Adv); "
        "Xiao et al., Adversarial Learning of Privacy-Preserving and Task-Oriented Representations, AAAI 2020"
    )
    adaptive_attacks = ("TokenDecoder",)

    def build_network(self, num_tokens: int, dim: int, patch_values: int, generator: torch.Generator) -> PatchDecoder:
        """G', with weights that depend on ``generator`` alone; see the base class."""
        with torch.random.fork_rng(devices=[]):
            # All of the state, as a seed would be cut to 32 bits; and of the CPU's generator alone.
            torch.default_generator.set_state(spawned(generator).get_state())
            return PatchDecoder(num_tokens, dim, patch_values)

    def losses(self, network: nn.Module, features: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """MSE(G'(F(X)), X) for G' alone, and -w times the same for the client half alone; their sum trains both.

        Args:
            network: G'.
            features: (B, N, D), what is sent.
            patches: (B, N, V), the images' pixels in [0, 1].

        Returns:
            Two scalars: the first passes no gradient to ``features``, the second none to ``network``.
        """
        own = F.mse_loss(network(features.detach()), patches)
        # A state dictionary holds detached weights.
        return own, -self.weight * F.mse_loss(functional_call(network, network.state_dict(), (features,)), patches)
