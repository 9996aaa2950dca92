"""Recovery of a row from shuffled or noisy embeddings: the field of each embedding, then its category."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attacks.assignment import assigned
from attacks.base import Knowledge, learned_field
from attacks.guesses import Cells
from attacks.sender import Sender
from attacks.smashed.base import SmashedData, check_features
from attacks.tabular.base import Dictionary, TableAttack, auxiliary_rows, categories_of, embeddings_of, table_of
from defenses.checks import Examples, Several, algorithm
from defenses.tensors import Numbers

SMALLEST_VARIANCE = 1e-8
"""Of the noise, over the mean square of an embedding: without noise the nearest category has all of the probability."""
ROUNDS = 10
"""Of matching all transmissions to their mean, at most; more than four are rare."""
PASSES = 4
"""Of matching shuffled transmissions to the row that was read, and reading their mean again, at most."""


@dataclass(frozen=True)
class FieldReader:
    """What was learned from auxiliary rows.

    Attributes:
        dictionary: Of all categories that they show.
        fields: Columns F.
        variance: Mean square by which a sent embedding differs from the one that it was made of.
        in_slots: Embeddings arrive in the order of the columns.
        together: Transmissions that it reads at once; what was better on the rows that were held out, where they are shuffled.
        diagnostics: "holdout_cells_right", the share of (field, category) found in rows that were held out; "noise_std";
            "transmissions_read", which is ``together``.
    """

    dictionary: Dictionary
    fields: int
    variance: float
    in_slots: bool
    together: int
    diagnostics: Numbers

    def read_all(self, sent: Tensor) -> tuple[Tensor, Tensor]:
        """The same of transmissions (T, B, F, D), of which it takes ``together`` at most."""
        used = sent[: self.together]
        variance = self.variance / len(used)
        if self.in_slots or len(used) == 1:
            return self.read(used.mean(0), variance)
        guess, embeddings = self.read(matched_mean(used), variance)
        placed = replace(self, in_slots=True)
        for _ in range(PASSES):
            mean = torch.stack([closest(embeddings, transmission) for transmission in used]).mean(0)
            again, embeddings = placed.read(mean, variance)
            if torch.equal(again, guess):
                break
            guess = again
        return guess, embeddings

    def read(self, tokens: Tensor, variance: float) -> tuple[Tensor, Tensor]:
        """The most probable category of every column, for tokens (B, F, D): (B, F), and its embedding (B, F, D)."""
        floor = SMALLEST_VARIANCE * float(self.dictionary.embeddings.square().mean())
        distances = torch.cdist(tokens, self.dictionary.embeddings.expand(len(tokens), -1, -1)).square()
        odds = self.dictionary.log_prior - distances / (2 * max(variance, floor))
        # Of every slot and column: how well the slot fits the column at all, and the best category there.
        fit, best = [], []
        for column in range(self.fields):
            places = self.dictionary.of_column(column)
            fit.append(odds[..., places].logsumexp(-1))
            best.append(odds[..., places].argmax(-1) + places.start)
        # The slot of every column (B, F): its own, or the assignment of the largest probability.
        slots = torch.arange(self.fields, device=tokens.device).expand(len(tokens), -1)
        if not self.in_slots:
            slots = assigned(-torch.stack(fit, -1).transpose(1, 2)).to(tokens.device)
        entries = torch.stack(best, -1).gather(1, slots.unsqueeze(1))[:, 0]
        return self.dictionary.categories[entries], self.dictionary.embeddings[entries]


@algorithm
class FieldReading(TableAttack, quick={"batch_size": 8}):
    """Recover a table row from its embeddings: Bayes' rule over categories, and an optimal assignment of embeddings to fields.

    A shuffle hides only the order of a row's embeddings. In a frozen table, embeddings of different fields rarely coincide, so
    that an embedding reveals its field and category. With t the token in slot s, v the embedding and p the share of auxiliary
    rows of category c in field f,

        score(s, f) = log sum_c p_c exp(-|t_s - v_c|^2 / 2 sigma^2),

    slots are assigned to fields so that the sum of the scores is largest, and each field's guess is its slot's most probable
    category. The variance sigma^2 is that of the attacker's own rows sent through the clients' defences. The server knows the whole
    table of embeddings: a category without an auxiliary row is guessed if its embedding fits.

    If the defences leave embeddings in their slots, all transmissions are averaged. Shuffled transmissions are matched with each
    other, token by token, and averaged; the mean is decoded to a row, matched with that row, and so on. Under strong noise, several
    transmissions can give worse results than one; held-out auxiliary rows decide between the two. For a client half that
    sends more than the embeddings (``difm-factors``), the attack uses the embeddings, which come in order.

    Attributes:
        transmissions: Most transmissions to average.
        batch_size: Auxiliary rows that are sent together.
    """

    source = "ours, after the remark that PatchShuffle hides the order and not the tokens; assignment by Kuhn 1955"
    threat = "smashed data; the client half's public weights; the defences' algorithm; auxiliary rows"

    transmissions: Examples = 8
    batch_size: Several = 64
    learned: FieldReader = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Learn the dictionary and the noise."""
        sender, kept, held = auxiliary_rows(knowledge, generator)
        dictionary = Dictionary.of(categories_of(kept), table_of(sender))
        errors = []
        for rows in torch.split(kept[: 16 * self.batch_size], self.batch_size):
            if len(rows) > 1:
                sent, order = _sent(sender, rows, generator)
                own = embeddings_of(sender, rows).flatten(0, 1)[order.to(sent.device)]
                errors.append((sent - own).square().mean())
        variance = float(torch.stack(errors).mean())
        in_slots = not sender.pipeline.shuffles or sender.edge.keeps_slots
        reader = FieldReader(dictionary, kept.shape[2], variance, in_slots, self.transmissions, {})
        held = held[: max(self.batch_size, 2)]
        sent = torch.stack([_sent(sender, held, generator)[0] for _ in range(self.transmissions)])
        truth, options = categories_of(held), {self.transmissions} | (set() if in_slots else {1})
        # Fewer transmissions where more are no better.
        readings = {count: replace(reader, together=count).read_all(sent)[0] for count in options}
        scores = [(float((rows == truth).double().mean()), -count) for count, rows in readings.items()]
        right, together = max(scores)
        numbers = {"holdout_cells_right": right, "noise_std": variance**0.5, "transmissions_read": float(-together)}
        return replace(self, learned=replace(reader, together=-together, diagnostics=numbers))

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Cells:
        """Guess the target rows."""
        reader = self.learned
        features = observation.features[:, : observation.num_targets].detach().float()
        check_features(features, (reader.fields, observation.edge.token_length))
        guess, embeddings = reader.read_all(observation.edge.embeddings_in(features))
        return Cells(guess.cpu(), embeddings.cpu(), dict(reader.diagnostics))


def closest(wanted: Tensor, tokens: Tensor) -> Tensor:
    """Tokens (B, N, D) in the order that fits wanted (B, N, D) best: one assignment a row of the smallest squared distance."""
    slots = assigned(torch.cdist(wanted, tokens).square()).to(tokens.device)
    return tokens.gather(1, slots.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


def matched_mean(sent: Tensor) -> Tensor:
    """The mean of transmissions (T, B, N, D), each token with the one that fits it in every other: (B, N, D), in any order.

    As k-means, with one token of each transmission in every cluster: it starts at the first transmission, and each round matches
    all to the mean of the round before.
    """
    mean = sent[0]
    for _ in range(ROUNDS):
        better = torch.stack([closest(mean, transmission) for transmission in sent]).mean(0)
        if torch.equal(better, mean):
            break
        mean = better
    return mean


def _sent(sender: Sender, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embeddings on the wire (n, F, D), and the order in which they come (n, F)."""
    features, order = sender.send_with_order(rows, generator)
    return sender.edge.embeddings_in(features.float()), order
