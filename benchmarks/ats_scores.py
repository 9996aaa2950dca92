"""What the privacy score of ATS says about attacks: its correlation with what inversion recovers, and the layers it comes from.

``correlation``: random policies, each with S_pri and with the PSNR that a reduced InvertingGradients reaches on one-step updates of
the semi-trained model (section 4.2 and Fig. 2 of the paper: Pearson r of 0.697 for 100 policies and 2,500 iterations). ``layers``:
the mean GradSim of each parameter tensor without a policy and with the paper's (Fig. 6). A line is printed as soon as it is known.

    uv run python benchmarks/ats_scores.py correlation --policies 30 --iterations 300
    uv run python benchmarks/ats_scores.py layers
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator

import torch
from scipy.stats import pearsonr
from torch import Tensor
from torch.nn import functional as F

from attacks import InvertingGradients
from attacks.base import ClientUpdate
from attacks.image_measures import psnr
from defenses.base import generator_for
from simulations.search.algorithm import sample
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from simulations.search.space import text_of

LEARNING_RATE = 0.1
PAPERS = ((), (3, 1, 7), (43, 18, 18))


def updates(scorer: Scorer, protected: Tensor) -> list[ClientUpdate]:
    """One-step updates of single transformed images, with known labels."""
    model, card = scorer.gradients.model, scorer.card
    names = [name for name, _ in model.named_parameters()]
    found = []
    for image, target in zip(protected, scorer.targets, strict=True):
        loss = F.cross_entropy(model(image[None]), target[None])
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        update = {name: -LEARNING_RATE * value for name, value in zip(names, gradient, strict=True)}
        labels = target.argmax()[None]
        found.append(
            ClientUpdate(
                model=model, update=update, input_shape=card.input_shape, mean=card.mean, std=card.std, num_examples=1,
                batch_size=1, local_steps=1, learning_rate=LEARNING_RATE, labels=labels, train_mode=False,
            )
        )  # fmt: skip
    return found


def correlation(chosen: argparse.Namespace, scorer: Scorer) -> Iterator[str]:
    """Both numbers for each policy, and Pearson's r with its 95 % interval."""
    attack = InvertingGradients(iterations=chosen.iterations, restarts=1)
    policies = sample(generator_for("study", chosen.seed), scorer.card.input_shape[0])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (scorer.card.mean, scorer.card.std))
    rows = []
    yield "| policy | S_pri | PSNR to the transformed image, dB | PSNR to the original, dB |"
    yield "|---|---|---|---|"
    for number, policy in enumerate(itertools.islice(policies, chosen.policies)):
        protected = scorer.protected(policy)[: chosen.attacked]
        streams = [generator_for("study", chosen.seed, number, at) for at in range(len(protected))]
        guesses = torch.cat([guess.images for guess in attack.attack_many(updates(scorer, protected), streams)])
        score = float(scorer.curves(policy).mean())
        seen = psnr(guesses, (protected.cpu() * std + mean).clamp(0, 1))
        own = psnr(guesses, scorer.clean[: chosen.attacked])
        rows.append((score, float(seen.mean()), float(own.mean())))
        yield f"| {text_of((policy,))} | {score:.4f} | {rows[-1][1]:.2f} | {rows[-1][2]:.2f} |"
    for name, at in (("transformed", 1), ("original", 2)):
        result = pearsonr([row[0] for row in rows], [row[at] for row in rows])
        low, high = result.confidence_interval(0.95)
        yield f"\nr of S_pri with PSNR to the {name} image: {result.statistic:.3f} ({low:.3f} to {high:.3f}), n = {len(rows)}"


def layers(chosen: argparse.Namespace, scorer: Scorer) -> Iterator[str]:
    """Mean GradSim over the way, of each parameter tensor alone."""
    del chosen
    model, search = scorer.gradients.model, scorer.search
    names = [
        f"{layer}.{name}"
        for layer, one in scorer.gradients.layers.items()
        for name, _ in one.named_parameters(recurse=False)
    ]
    yield "| parameter | " + " | ".join(text_of((policy,)) or "none" for policy in PAPERS) + " |"
    yield "|---" * (len(PAPERS) + 1) + "|"
    columns = []
    for policy in PAPERS:
        protected = scorer.protected(policy)
        ends = list(scorer.gradients.of(protected, scorer.targets))
        sums = [0.0] * len(names)
        for step in range(search.path_steps):
            points = torch.lerp(scorer.noise, protected, step / search.path_steps)
            found = scorer.gradients.of(points, scorer.targets)
            for at, (one, end) in enumerate(zip(found, ends, strict=True)):
                sums[at] += float(F.cosine_similarity(one, end, 1).mean()) / search.path_steps
        columns.append(sums)
    for name, *values in zip(names, *columns, strict=True):
        yield f"| {name} | " + " | ".join(f"{value:.3f}" for value in values) + " |"
    yield f"\n{sum(p.numel() for p in model.parameters()):,} parameters, {len(scorer.clean)} images; mean over tensors "
    yield ", ".join(f"{statistics.mean(column):.3f}" for column in columns)


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
