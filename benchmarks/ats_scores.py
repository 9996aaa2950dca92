"""What the privacy score of ATS says about attacks: its correlation with what inversion recovers, and where inversion is held up.

``correlation``: random policies, each with S_pri and with the PSNR that a reduced InvertingGradients reaches on one-step updates
of the semi-trained model, of other images than those of S_pri and with other signs (section 4.2 and Fig. 2 of the paper: Pearson
r of 0.697 for 100 policies and 2,500 iterations). ``layers``: the cosine between the gradient of what inversion has reconstructed
and that of the protected image, of each parameter tensor, after more and more iterations (Fig. 6); every number of iterations is
an attack of its own, with its own schedule of steps. A line is printed as soon as it is known.

    uv run python benchmarks/ats_scores.py correlation --policies 30 --iterations 300
    uv run python benchmarks/ats_scores.py layers
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import pearsonr
from torch import Tensor
from torch.nn import functional as F

from attacks import InvertingGradients
from attacks.image_measures import psnr
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from clients.data.datasets import to_float
from defenses.ats import Policy, transform_images
from defenses.base import generator_for
from simulations.search.algorithm import sample
from simulations.search.pictures import score_positions
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from simulations.search.space import text_of

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


def correlation(chosen: argparse.Namespace, scorer: Scorer) -> Iterator[str]:
    """Both numbers for each policy, and Pearson's r with its 95 % interval."""
    attacked = Attacked.of(scorer, chosen.attacked)
    policies = sample(generator_for("study", chosen.seed), scorer.card.input_shape[0])
    rows = []
    yield "| policy | S_pri | PSNR to the transformed image, dB | PSNR to the original, dB |"
    yield "|---|---|---|---|"
    for number, policy in enumerate(itertools.islice(policies, chosen.policies)):
        protected = attacked.protected([policy], generator_for("study", chosen.seed, "signs", number))
        guesses = attacked.inverted(protected, chosen.iterations, chosen.seed, number)
        score = float(scorer.curves(policy).mean())
        rows.append((score, float(psnr(guesses, protected).mean()), float(psnr(guesses, attacked.images).mean())))
        yield f"| {text_of((policy,))} | {score:.4f} | {rows[-1][1]:.2f} | {rows[-1][2]:.2f} |"
    for name, at in (("transformed", 1), ("original", 2)):
        result = pearsonr([row[0] for row in rows], [row[at] for row in rows])
        low, high = result.confidence_interval(0.95)
        yield f"\nr of S_pri with PSNR to the {name} image: {result.statistic:.3f} ({low:.3f} to {high:.3f}), n = {len(rows)}"


def layers(chosen: argparse.Namespace, scorer: Scorer) -> Iterator[str]:
    """Cosines of each parameter tensor, a group of columns for each policy."""
    attacked = Attacked.of(scorer, chosen.attacked)
    columns: dict[str, Tensor] = {}
    for name, policies in PAPERS.items():
        protected = attacked.protected(policies, generator_for("study", chosen.seed, name))
        wanted = attacked.gradients(protected)
        for iterations in CHECKPOINTS:
            reached = attacked.gradients(attacked.inverted(protected, iterations, chosen.seed, name))
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
    parser.add_argument("study", choices=("correlation", "layers"))
    parser.add_argument("--dataset", default="photos")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--images", type=int, default=16, help="of S_pri")
    parser.add_argument("--policies", type=int, default=30)
    parser.add_argument("--attacked", type=int, default=8, help="images that are attacked under each policy")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    search = Search(
        dataset=chosen.dataset, data_dir=chosen.data_dir, model=chosen.model, images=chosen.images, seed=chosen.seed
    )
    scorer = Scorer(search, semi_train(search))
    found = {"correlation": correlation, "layers": layers}[chosen.study](chosen, scorer)
    print(
        f"{chosen.dataset}, {chosen.model}, seed {chosen.seed}, {chosen.images} images for S_pri, {search.path_steps} steps\n"
    )
    for line in found:
        print(line, flush=True)


if __name__ == "__main__":
    main()
