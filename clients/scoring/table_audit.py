"""A client's scoring of guessed table rows: the share of right cells, and the error of embeddings."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from attacks.guesses import Cells
from attacks.metrics.guesses import CELLS_RIGHT, COLUMN, MSE_EMBEDDING
from attacks.metrics.names import GuessName, Role, ScoreName, Scores
from clients.task.local_data import LocalData
from clients.task.truths import Probed, Truths

FREQUENT = GuessName(Role.NULL_BASELINE, "frequent")
"""Every column's most frequent category, and the mean of the embeddings."""

Embed = Callable[[Tensor], Tensor]


def cell_scores(data: LocalData, guess: Cells, truth: Probed, embed: Embed | None) -> Scores:
    """Scores of guessed rows, each against the attacked row in its place.

    ``CELLS_RIGHT`` of each row; ``COLUMN`` of each column and row; ``MSE_EMBEDDING`` of each row, where ``Truths.embed`` is known.

    Raises:
        ValueError: When there are not as many rows or columns as are attacked.
    """
    rows = truth.original.images
    categories = rows[:, 0, :, 0].round().long().cpu()
    if guess.categories.shape != categories.shape:
        raise ValueError(f"guessed cells are {tuple(guess.categories.shape)}, attacked ones {tuple(categories.shape)}")
    right = (guess.categories == categories).float()
    scores = {CELLS_RIGHT.of(): right.mean(1).tolist()}
    scores |= {ScoreName(f"{COLUMN.name}{name}"): right[:, at].tolist() for at, name in enumerate(data.card.columns)}
    if embed is not None:
        scores[MSE_EMBEDDING.of()] = (guess.embeddings.cpu() - embed(rows)).square().mean((1, 2)).tolist()
    return scores


def cell_baselines(data: LocalData, known: Truths) -> Scores:
    """Scores of the null baseline ``FREQUENT``, the most frequent value of each column.

    Frequencies and mean are those of this client's own training rows, which no attacker has.
    """
    rows = data.plain(data.averaged()).images
    frequent = rows[:, 0, :, 0].round().long().mode(0).values
    mean = known.embed(rows).mean(0) if known.embed else torch.zeros(len(frequent), 1)
    scores: Scores = defaultdict(list)
    for truth in known.views:
        count = len(truth.original)
        guess = Cells(frequent.expand(count, -1), mean.expand(count, -1, -1))
        for name, values in cell_scores(data, guess, truth, known.embed).items():
            scores[name].extend(values)
    return dict(scores)
