"""The patch-shuffling paper's attack on tables: from the vector-wise factors of DIFM back to the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge, learned_field
from attacks.descent import step_down
from attacks.guesses import Cells
from attacks.networks.standardise import Standardise
from attacks.observations import AttackError
from attacks.sender import Sender
from attacks.smashed.base import SmashedData, check_features
from attacks.tabular.base import Dictionary, TableAttack, auxiliary_rows, categories_of, embeddings_of, table_of
from defenses.checks import SMALLEST, Limit, Several, Steps, Width, algorithm, require
from defenses.random_draws import drawing_from, seed_of
from defenses.tensors import Numbers

HEADS = 4
"""Attention heads."""


class ReversalNetwork(nn.Module):
    """Factors (B, F) -> embeddings (B, F, D): each is lifted to a token, one transformer block, one linear layer."""

    def __init__(self, fields: int, dim: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(fields, width))
        self.shift = nn.Parameter(torch.randn(fields, width))
        self.block = nn.TransformerEncoderLayer(width, HEADS, 2 * width, dropout=0.0, batch_first=True)
        self.out = nn.Linear(fields * width, fields * dim)
        self.shape = (fields, dim)

    def forward(self, factors: Tensor) -> Tensor:
        """Reverses the factors, which should have a mean of 0 and a deviation of 1."""
        tokens: Tensor = self.block(factors.unsqueeze(2) * self.scale + self.shift)
        embedded: Tensor = self.out(tokens.flatten(1)).unflatten(1, self.shape)
        return embedded


@algorithm
class EmbeddingReversal(
    TableAttack, effort={"iterations": "training_iterations"}, quick={"iterations": 5, "width": 8, "batch_size": 8}
):
    """Recover a table row's embeddings from the F numbers m_vec of DIFM by a transformer, trained on auxiliary rows.

    The paper's score is the squared error of the embeddings ("MSE" of its Table III). An error below that of the mean embedding
    needs only some information about the row in m_vec; the guessed category is the field's nearest embedding. The server knows
    more than m_vec: here it computes m_vec from received embeddings, which ``FieldReading`` attacks directly. The network is
    trained anew for the server half of each attacked round. The paper trains on the clients' own training rows;
    ``auxiliary-data = "private"`` repeats this.

    Attributes:
        iterations: Steps of Adam.
        width: Width of a token in the network, a multiple of 4.
        batch_size: Auxiliary rows per step; also the group that a defence mixes.
        learning_rate: Learning rate of Adam.
        learned: Set by ``fit``: dictionary, auxiliary rows, and the seed of the training, which ``fit``'s generator draws.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, VI-B (attacker on Criteo)"
    threat = "m_vec of smashed data; both halves; the defences' algorithm; auxiliary rows"

    iterations: Steps = 400
    width: Width = 16
    batch_size: Several = 128
    learning_rate: Annotated[float, Limit(SMALLEST, 1)] = 3e-3
    learned: tuple[Sender, Dictionary, Tensor, Tensor, int] = learned_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % HEADS == 0, self, "width", f"a multiple of {HEADS}")

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keeps auxiliary rows and what the client half makes of them."""
        sender, kept, held = auxiliary_rows(knowledge, generator)
        dictionary = Dictionary.of(categories_of(kept), table_of(sender)).seen(len(kept))
        return replace(self, learned=(sender, dictionary, kept, held, seed_of(generator)))

    def attack_many(self, observations: Sequence[SmashedData], generators: Sequence[torch.Generator]) -> list[Cells]:
        """Trains one network for the server half that all observations share; each guess then depends on its own alone."""
        self.check_fitted()
        trained: dict[int, _Reverser] = {}
        guesses = []
        for observation in observations:
            try:
                if id(observation.server) not in trained:
                    trained[id(observation.server)] = self._train(observation.server)
                guesses.append(trained[id(observation.server)](observation))
            except AttackError as error:
                guesses.append(self.failed(observation, str(error)))
        return guesses

    def _train(self, server: nn.Module) -> _Reverser:
        factors_of = getattr(server, "vector_factors", None)
        if factors_of is None:
            raise AttackError(f"{self} reverses the vector-wise factors of DIFM; {type(server).__name__} has none")
        sender, dictionary, kept, held, seed = self.learned
        # Its stream must not depend on the order of the observations.
        generator = torch.Generator().manual_seed(seed)
        fields, dim = kept.shape[2], dictionary.embeddings.shape[1]
        sample = _factors(factors_of, sender, kept[: 8 * self.batch_size], generator)
        with drawing_from(generator):
            reversal = ReversalNetwork(fields, dim, self.width)
        network = nn.Sequential(Standardise(sample.mean(0), sample.std(0).clamp_min(1e-12)), reversal).to(kept.device)
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        for _ in range(self.iterations):
            rows = kept[torch.randperm(len(kept), generator=generator)[: self.batch_size].to(kept.device)]
            factors = _factors(factors_of, sender, rows, generator)
            step_down(optimizer, (network(factors) - embeddings_of(sender, rows)).square().mean())
        network.eval().requires_grad_(False)
        guess = network(_factors(factors_of, sender, held, generator))
        truth, blind = embeddings_of(sender, held), embeddings_of(sender, kept).mean(0)
        scores = {
            "holdout_mse": float((guess - truth).square().mean()),
            "holdout_mse_mean_embedding": float((blind - truth).square().mean()),
        }
        return _Reverser(network, factors_of, (fields, sender.edge.token_length), dictionary, scores)


@dataclass(frozen=True)
class _Reverser:
    """A trained network, and what stands before and behind it."""

    network: nn.Module
    factors_of: Any
    token_shape: tuple[int, int]
    dictionary: Dictionary
    diagnostics: Numbers

    def __call__(self, observation: SmashedData) -> Cells:
        features = observation.features[0, : observation.num_targets].detach().float()
        check_features(features, self.token_shape)
        with torch.no_grad():
            embeddings = self.network(self.factors_of(features))
        categories = []
        for column in range(embeddings.shape[1]):
            places = self.dictionary.of_column(column)
            nearest = torch.cdist(embeddings[:, column], self.dictionary.embeddings[places]).argmin(1)
            categories.append(self.dictionary.categories[places][nearest])
        return Cells(torch.stack(categories, 1).cpu(), embeddings.cpu(), dict(self.diagnostics))


@torch.no_grad()
def _factors(factors_of: Any, sender: Sender, rows: Tensor, generator: torch.Generator) -> Tensor:
    """m_vec (n, F) of rows that the attacker sends itself, through the clients' defences."""
    factors: Tensor = factors_of(sender.send(rows, generator))
    return factors
