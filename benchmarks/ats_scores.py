"""What both privacy scores of ATS say about each other and about attacks, and where inversion is held up.

``agreement``: random policies, each with the score of the paper's Eqs. 5 and 7 and with that of the authors' released code, of the
same gradients: Spearman's rank correlation of the two with a bootstrap interval over policies, for each seed. Beside it stand the
two of separate draws of the noise and of the signs, and each score with itself of separate draws: what draws alone cost.

``correlation``: random policies, each with both scores and with the PSNR that a reduced InvertingGradients reaches on one-step
updates of the semi-trained model, of other images than those of S_pri and with other signs (section 4.2 and Fig. 2 of the paper:
Pearson r of 0.697 for 100 policies and 2,500 iterations).

``layers``: the cosine between the gradient of what inversion has reconstructed and that of the protected image, of each parameter
tensor, after more and more iterations (Fig. 6); every number of iterations is an attack of its own, with its own schedule of
steps. A line is printed as soon as it is known.

    uv run python benchmarks/ats_scores.py agreement --policies 30 --seeds 0 1 2
    uv run python benchmarks/ats_scores.py correlation --policies 30 --iterations 300
    uv run python benchmarks/ats_scores.py layers
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import InvertingGradients
from attacks.image_measures import psnr
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from clients.data.datasets import to_float
from defenses.images.ats import Policy, transform_images
from defenses.random_draws import generator_for
from simulations.search.pictures import score_positions
from simulations.search.scorer import Scorer, semi_train
from simulations.search.scores import paper_score, released_score, similarity_curves
from simulations.search.settings import Search
from simulations.search.space import sample, text_of
from simulations.search.two_scores import RESAMPLES, rank_correlation

LEARNING_RATE = 0.1
PAPERS = {"none": (), "19-1-18": ((19, 1, 18),), "3-1-7+43-18-18": ((3, 1, 7), (43, 18, 18))}
"""The three of Fig. 6: no policy, a random one, the searched hybrid."""
CHECKPOINTS = (10, 40, 150, 600)


@dataclass(frozen=True)
class Attacked:
    """Images that neither M^s nor S_pri has seen.

    Attributes:
        scorer: The model and what policies share.
        images: (n, C, H, W) in [0, 1].
        targets: (n, K).
    """

    scorer: Scorer
    images: Tensor
    targets: Tensor

    @classmethod
    def of(cls, scorer: Scorer, count: int) -> Attacked:
        """The next ``count`` behind those of S_pri."""
        search, data = scorer.search, scorer.data
        positions = score_positions(replace(search, images=search.images + count), data)[search.images :]
        targets = F.one_hot(data.train.labels[positions], data.num_classes).float()
        return cls(scorer, to_float(data.train.images[positions]), targets)

    def protected(self, policies: Sequence[Policy], stream: torch.Generator) -> Tensor:
        """T(x), in [0, 1]."""
        if not policies:
            return self.images
        return transform_images(self.images, tuple(policies), use_prob=False, generator=stream)

    def gradients(self, images: Tensor) -> list[tuple[Tensor, ...]]:
        """Of each image, in [0, 1], by the parameters of the semi-trained model in eval mode."""
        model = self.scorer.gradients.model
        return [
            torch.autograd.grad(F.cross_entropy(model(image[None]), target[None]), list(model.parameters()))
            for image, target in zip(normalise(images, self.scorer.card), self.targets, strict=True)
        ]

    def updates(self, images: Tensor) -> list[ClientUpdate]:
        """One-step updates of single images, with known labels."""
        model, card = self.scorer.gradients.model, self.scorer.card
        names = [name for name, _ in model.named_parameters()]
        return [
            ClientUpdate(
                model=model, update={name: -LEARNING_RATE * value for name, value in zip(names, gradient, strict=True)},
                input_shape=card.input_shape, mean=card.mean, std=card.std, num_examples=1, batch_size=1, local_steps=1,
                learning_rate=LEARNING_RATE, labels=target.argmax()[None], train_mode=False,
            )
            for gradient, target in zip(self.gradients(images), self.targets, strict=True)
        ]  # fmt: skip

    def inverted(self, images: Tensor, iterations: int, *key: int | str) -> Tensor:
        """What InvertingGradients makes of their updates, (n, C, H, W) in [0, 1]."""
        attack = InvertingGradients(iterations=iterations, restarts=1)
        streams = [generator_for("study", *key, at) for at in range(len(images))]
        return torch.cat([guess.images for guess in attack.attack_many(self.updates(images), streams)])


def both_scores(scorer: Scorer, policy: Policy, seed: int, draw: int) -> tuple[float, float]:
    """(released, paper) of a policy, of the same gradients, with the noise and the signs of a draw."""
    raw = torch.rand(scorer.clean.shape, generator=generator_for("study", seed, "noise", draw))
    noise, protected = normalise(raw.to(scorer.noise.device), scorer.card), scorer.protected(policy, draw)
    curves = similarity_curves(scorer.gradients, protected, noise, scorer.targets, scorer.search.path_steps)
    return float(released_score(curves).mean()), float(paper_score(curves).mean())


def scorers(chosen: argparse.Namespace) -> Iterator[tuple[int, Scorer]]:
    """Each seed with a scorer of its own model, images and noise."""
    for seed in chosen.seeds:
        search = Search(
            dataset=chosen.dataset, data_dir=chosen.data_dir, model=chosen.model, images=chosen.images, seed=seed,
            semi_epochs=chosen.semi_epochs,
        )  # fmt: skip
        yield seed, Scorer(search, semi_train(search))


def sampled(chosen: argparse.Namespace, scorer: Scorer, seed: int) -> list[Policy]:
    """The random policies of a seed."""
    return list(itertools.islice(sample(generator_for("study", seed), scorer.card.input_shape[0]), chosen.policies))


def agreement(chosen: argparse.Namespace) -> Iterator[str]:
    """Rank correlations of both scores, of each seed."""
    for seed, scorer in scorers(chosen):
        yield from agreement_of(scorer, sampled(chosen, scorer, seed), seed)


def agreement_of(scorer: Scorer, policies: Sequence[Policy], seed: int) -> Iterator[str]:
    """Rank correlations of both scores, of one seed."""
    found = [[both_scores(scorer, policy, seed, draw) for draw in (0, 1)] for policy in policies]
    (released, paper), (released_again, paper_again) = np.array(found).transpose(1, 2, 0).tolist()
    for name, first, second in (
        ("released and paper, same gradients", released, paper),
        ("released and paper, each its own draws", released, paper_again),
        ("released with itself, other draws", released, released_again),
        ("paper with itself, other draws", paper, paper_again),
    ):
        yield f"- seed {seed}, {name}: Spearman {rank_correlation(first, second)}"


KNOWN = ("PSNR to the transformed image", "that above the mean image's", "PSNR to the original")
COLUMNS = ("policy", "S_pri, released", "S_pri, paper", *KNOWN)


def correlation(chosen: argparse.Namespace) -> Iterator[str]:
    """Both scores and what inversion recovers under each policy; Pearson's r of each score, and their mean over seeds."""
    tables = []
    for seed, scorer in scorers(chosen):
        yield f"\nseed {seed}\n\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
        attacked, rows = Attacked.of(scorer, chosen.attacked), []
        for number, policy in enumerate(sampled(chosen, scorer, seed)):
            rows.append(row_of(chosen, attacked, policy, (seed, number)))
            told = [f"{value:.4f}" for value in rows[-1][:2]] + [f"{value:.2f}" for value in rows[-1][2:]]
            yield f"| {' | '.join([text_of((policy,)), *told])} |"
        tables.append(np.array(rows).T)
        yield f"\nreleased and paper: Spearman {rank_correlation(*tables[-1][:2].tolist())}\n"
        yield from compared(tables[-1:])
    if len(tables) > 1:
        yield f"\nmeans over {len(tables)} seeds\n"
        yield from compared(tables)


def row_of(chosen: argparse.Namespace, attacked: Attacked, policy: Policy, key: tuple[int, int]) -> list[float]:
    """Both scores of a policy, and means over images of ``KNOWN`` in dB."""
    protected = attacked.protected([policy], generator_for("study", key[0], "signs", key[1]))
    guesses = attacked.inverted(protected, chosen.iterations, *key)
    curves = attacked.scorer.curves(policy)
    seen = float(psnr(guesses, protected).mean())
    blind = float(psnr(attacked.scorer.clean.mean(0, keepdim=True).expand_as(protected), protected).mean())
    scores = [float(score(curves).mean()) for score in (released_score, paper_score)]
    return [*scores, seen, seen - blind, float(psnr(guesses, attacked.images).mean())]


def compared(tables: Sequence[np.ndarray]) -> Iterator[str]:
    """Pearson's r of each score with what is known, and their difference: means over seeds, whose policies are drawn anew.

    Args:
        tables: Of each seed: (2 + numbers of ``KNOWN``, policies), the scores first.
    """
    generator = np.random.default_rng(0)
    draws = [[generator.integers(table.shape[1], size=table.shape[1]) for table in tables] for _ in range(RESAMPLES)]
    for at, name in enumerate(KNOWN, 2):
        values = np.array([_correlations(tables, at, rows) for rows in draws])
        low, high = np.nanpercentile(values, [2.5, 97.5], axis=0)
        told = [
            f"{what} {value:+.2f} ({one:+.2f} to {other:+.2f})"
            for what, value, one, other in zip(
                ("released", "paper", "difference"), _correlations(tables, at), low, high, strict=True
            )
        ]
        yield f"- Pearson's r with {name}, n = {sum(table.shape[1] for table in tables)}: {', '.join(told)}"


def _correlations(tables: Sequence[np.ndarray], at: int, rows: Sequence[np.ndarray] | None = None) -> list[float]:
    """Of the released score, of the paper's, and their difference; means over seeds."""
    drawn = tables if rows is None else [table[:, of] for table, of in zip(tables, rows, strict=True)]
    released, paper = (
        float(np.mean([np.corrcoef(table[score], table[at])[0, 1] for table in drawn])) for score in (0, 1)
    )
    return [released, paper, released - paper]


def layers(chosen: argparse.Namespace) -> Iterator[str]:
    """Cosines of each parameter tensor, a group of columns for each policy, of each seed."""
    for seed, scorer in scorers(chosen):
        yield from layers_of(chosen, scorer, seed)


def layers_of(chosen: argparse.Namespace, scorer: Scorer, seed: int) -> Iterator[str]:
    """Cosines of each parameter tensor, of one seed."""
    attacked = Attacked.of(scorer, chosen.attacked)
    columns: dict[str, Tensor] = {}
    for name, policies in PAPERS.items():
        protected = attacked.protected(policies, generator_for("study", seed, name))
        wanted = attacked.gradients(protected)
        for iterations in CHECKPOINTS:
            reached = attacked.gradients(attacked.inverted(protected, iterations, seed, name))
            cosines = [
                torch.stack([F.cosine_similarity(a.flatten(), b.flatten(), 0) for a, b in zip(own, true, strict=True)])
                for own, true in zip(reached, wanted, strict=True)
            ]
            columns[f"{name}, {iterations}"] = torch.stack(cosines)
    yield "| parameter | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for at, (name, _) in enumerate(scorer.gradients.model.named_parameters()):
        yield f"| {name} | " + " | ".join(f"{float(column[:, at].mean()):.3f}" for column in columns.values()) + " |"
    yield "| mean | " + " | ".join(f"{float(column.mean()):.3f}" for column in columns.values()) + " |"
    yield f"\n{chosen.attacked} attacked images; columns: policies, iterations"


def main() -> None:
    """Prints a study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=tuple(STUDIES))
    parser.add_argument("--dataset", default="photos")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--images", type=int, default=16, help="of S_pri")
    parser.add_argument("--semi-epochs", type=int, default=50, help="of the semi-trained model")
    parser.add_argument("--policies", type=int, default=30)
    parser.add_argument("--attacked", type=int, default=8, help="images that are attacked under each policy")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of models, images, policies and draws; one study each"
    )
    chosen = parser.parse_args()
    print(
        f"{chosen.dataset}, {chosen.model}, semi-trained for {chosen.semi_epochs} epochs, {chosen.images} images for S_pri, "
        f"{chosen.policies} policies\n"
    )
    for line in STUDIES[chosen.study](chosen):
        print(line, flush=True)


STUDIES: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "agreement": agreement,
    "correlation": correlation,
    "layers": layers,
}


if __name__ == "__main__":
    main()
