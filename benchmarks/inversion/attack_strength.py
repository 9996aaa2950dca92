"""How much single attacks recover, each in the setting where it is easiest to judge, as Markdown tables.

Studies, chosen by ``--studies``:

- ``strength``: gradient inversion of one image at initialisation, against its iterations.
- ``refinements``: undoing VisualMixer when the inversion before was perfect, so that the protected images are known exactly.
- ``policies``, ``encodings``: likewise undoing ATS and InstaHide.
- ``membership``: a model that remembers its records, records that it never saw, and a model under differential privacy.
- ``steps``: two local steps, matched as steps and as one mean gradient.

Attacked images are test images, what attackers learn from are training images (membership: all of them). Means over images with
their 95 % interval (t); equal images count as 50 dB. The interval is over images and says nothing about another seed, which is why
each has its own row.

    python benchmarks/inversion/attack_strength.py --studies refinements encodings --seeds 0 1
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from attack_speed import observe
from paired_guesses import PairedGuesses, capped_psnr
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.presets import DLG, InvertingGradients
from attacks.guesses import Reconstruction
from attacks.image_measures import ssim
from attacks.membership.loss_threshold import LossThreshold
from attacks.membership.shadow_models import ShadowModels
from attacks.observations import ClientUpdate
from attacks.refinement.base import Refinement
from attacks.refinement.encodings import EncodingInversion
from attacks.refinement.policy_inversion import PolicyInversion
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.shredder import Shredder
from attacks.refinement.unshuffle import WindowMean
from attacks.scoring.roc import auc, auc_interval, tpr_at_fpr
from clients.data.datasets import load_dataset, to_float
from clients.models.classifiers import build_model
from defenses import ATS, InstaHide, VisualMixer
from defenses.base import Batch, InputDefense
from defenses.pipeline import Pipeline

DIGITS = "mnist-5k"
Row = tuple[str, ...]
Trainer = Callable[[nn.Module, Tensor, Tensor, int], nn.Module]
MEMBERS, OTHERS, AUXILIARY = 100, 400, 400
STEPS, RATE = 60, 0.1


def seeded(seed: int) -> torch.Generator:
    """A new stream."""
    return torch.Generator().manual_seed(seed)


def digits(part: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """``count`` random images (N, 1, 28, 28) in [0, 1] of the "train" or "test" part, and their classes."""
    data = getattr(load_dataset(DIGITS), part)
    chosen = torch.randperm(len(data), generator=seeded(seed))[:count]
    return to_float(data.images[chosen]), data.labels[chosen]


def interval(values: Tensor, digits_shown: int = 1) -> str:
    """Mean of (N,) values with its 95 % interval."""
    mean, count = values.mean().item(), len(values)
    reach = stats.t.ppf(0.975, count - 1) * values.std().item() / count**0.5
    return f"{mean:.{digits_shown}f} ({mean - reach:.{digits_shown}f} to {mean + reach:.{digits_shown}f})"


def scored(guess: Tensor, truth: Tensor) -> Row:
    """Number of images, PSNR and SSIM."""
    return str(len(truth)), interval(capped_psnr(guess, truth)), interval(ssim(guess, truth), 2)


def strength(seed: int) -> Iterator[Row]:
    """Model weights and starts are drawn by ``seed``; the images, spread over the classes, are the same."""
    attacks: list[tuple[str, str, int, GradientInversion]] = [
        ("lenet", DIGITS, 16, InvertingGradients(iterations=200)),
        ("lenet", DIGITS, 16, InvertingGradients()),
        ("lenet", DIGITS, 16, DLG(iterations=100)),
        ("lenet", DIGITS, 16, DLG()),
        ("resnet20", "photos", 4, InvertingGradients(iterations=200)),
    ]
    for name, dataset, count, attack in attacks:
        model = build_model(name, num_classes=10, input_shape=load_dataset(dataset).input_shape, seed=seed).eval()
        seen, truth = observe(model, dataset, count)
        guesses = attack.attack_many(seen, [seeded(1000 * seed + at) for at in range(count)])
        images = torch.cat([guess.images for guess in guesses])
        yield name, dataset, f"`{type(attack).__name__}`", str(attack.iterations), *scored(images, truth)


def undone(defense: InputDefense, attacks: list[Refinement], count: int, known: int, seed: int) -> Iterator[Row]:
    """What ``defense`` leaves visible, then what each attack makes of it that learned from ``known`` auxiliary images."""
    truth, labels = digits("test", count, seed)
    pipeline, auxiliary = Pipeline((defense,)), digits("train", known, seed)
    batch = pipeline.protect_once(Batch(truth, F.one_hot(labels, 10).float()), ("client", seed))
    protected = pipeline.protect_batch(batch, ("client", seed)).images
    yield f"`{defense}`", "(protected image)", *scored(protected, truth)
    mean_image = auxiliary[0].mean(0)
    yield f"`{defense}`", "(mean image)", *scored(mean_image.expand_as(truth), truth)
    knowledge = Knowledge(
        Batch(auxiliary[0], F.one_hot(auxiliary[1], 10).float()), pipeline, (0.1,), (0.3,), no_training
    )
    guess = Reconstruction(protected, torch.zeros(count, dtype=torch.int64))
    for attack in attacks:
        # The observation is not looked at: the guess is all that these attacks see.
        seen: list[ClientUpdate] = [None]  # type: ignore[list-item]
        found = attack.fit(knowledge, seeded(seed)).refine_many(seen, [guess], [seeded(seed)])[0]
        yield f"`{defense}`", f"`{attack}`", *scored(found.images, truth)


def no_training(*_: object) -> nn.Module:
    """Stands in ``Knowledge`` for the clients' training."""
    raise AssertionError("these attacks train no model of the clients'")


def refinements(seed: int) -> Iterator[Row]:
    """The restorer learns from 800 digits."""
    for defense in (VisualMixer(window_lower=4, window_upper=16), VisualMixer()):
        yield from undone(defense, [WindowMean(), Shredder(), LearnedRestorer()], 64, 800, seed)


def policies(seed: int) -> Iterator[Row]:
    """400 auxiliary digits."""
    for text in ("42-28-42+14-48-48", "3-1-7+43-18-18", "24", "10", "9"):
        yield from undone(ATS(policies=text), [PolicyInversion()], 32, 400, seed)


def encodings(seed: int) -> Iterator[Row]:
    """600 auxiliary digits."""
    for num_mixed in (2, 4):
        yield from undone(InstaHide(num_mixed=num_mixed), [EncodingInversion()], 32, 600, seed)


def normalised(images: Tensor) -> Tensor:
    """As the models of ``membership`` and ``steps`` see them."""
    data = load_dataset(DIGITS)
    return (images - data.mean[0]) / data.std[0]


def overfit(model: nn.Module, images: Tensor, classes: Tensor, _: int) -> nn.Module:
    """Full-batch SGD until every label is remembered."""
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(normalised(images)), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def private(model: nn.Module, images: Tensor, classes: Tensor, seed: int) -> nn.Module:
    """Full-batch DP-SGD, clipping norm 1, noise multiplier 100: epsilon 0.26 at delta 1e-5 for adding a record."""
    weights, noise = dict(model.named_parameters()), seeded(seed)

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (image[None],)), label[None])

    for _ in range(STEPS):
        detached = {name: value.detach() for name, value in weights.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(detached, normalised(images), classes)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        with torch.no_grad():
            for name, value in weights.items():
                total = torch.tensordot((1 / norms).clamp(max=1), each[name], 1)
                value.sub_(RATE * (total + 100 * torch.randn(value.shape, generator=noise)) / len(images))
    return model.eval()


def sent(start: nn.Module, local: nn.Module, examples: int, batch_size: int, count: int) -> ClientUpdate:
    """The update of a client that took ``count`` steps of SGD from ``start`` to ``local``, labels not told."""
    data, weights = load_dataset(DIGITS), dict(local.named_parameters())
    update = {name: (weights[name] - value).detach() for name, value in start.named_parameters()}
    shape, mean, std = (1, 28, 28), tuple(data.mean), tuple(data.std)
    return ClientUpdate(start, update, shape, mean, std, examples, batch_size, count, RATE, train_mode=False)


def perceptron(seed: int) -> nn.Module:
    """32 hidden units."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def membership(seed: int) -> Iterator[Row]:
    """One label in five is random, so that a model can only remember it; members, others and auxiliary digits are disjoint."""
    images, labels = digits("train", 2 * MEMBERS + OTHERS + AUXILIARY, seed)
    wrong = torch.rand(len(labels), generator=seeded(seed)) < 0.2
    labels = torch.where(wrong, torch.randint(10, labels.shape, generator=seeded(seed + 1)), labels)
    sizes = [MEMBERS, OTHERS, MEMBERS, AUXILIARY]
    members, others, fresh, auxiliary = zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True)
    known = Batch(auxiliary[0], F.one_hot(auxiliary[1], 10).float())
    trainers: dict[str, Trainer] = {"overfitted": overfit, "differentially private": private}
    for setting, train in trainers.items():
        start = perceptron(seed)
        seen = sent(start, train(copy.deepcopy(start), *members, seed), MEMBERS, MEMBERS, STEPS)

        def trained(batch: Batch, number: int, train: Trainer = train) -> nn.Module:
            return train(perceptron(number), batch.images, batch.targets.argmax(1), number)

        knowledge = Knowledge(known, Pipeline(), seen.mean, seen.std, trained)
        for attack in (LossThreshold(), ShadowModels(num_members=MEMBERS).fit(knowledge, seeded(seed))):
            test = attack(seen, seeded(seed))
            inside = {setting: members} | ({"overfitted, never seen (chance)": fresh} if train is overfit else {})
            for name, records in inside.items():
                yes, no = (test.scores(normalised(x), y) for x, y in (records, others))
                low, high = auc_interval(yes, no)
                caught = tpr_at_fpr(yes, no)
                yield (
                    *(name, f"`{type(attack).__name__}`", f"{MEMBERS} / {OTHERS}"),
                    f"{auc(yes, no):.2f} ({low:.2f} to {high:.2f})",
                    f"{caught.value:.2f} ({caught.low:.2f} to {caught.high:.2f})",
                )


def one_by_one(order: list[int], pair: tuple[Tensor, Tensor], model: nn.Module) -> ClientUpdate:
    """What a client with two digits sends that takes them one by one, in this order."""
    client = copy.deepcopy(model)
    optimizer = torch.optim.SGD(client.parameters(), RATE)
    inputs = normalised(pair[0]).double()
    for at in order:
        optimizer.zero_grad()
        F.cross_entropy(client(inputs[at : at + 1]), pair[1][at : at + 1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    seen = sent(model, client, 2, 1, len(order))
    return replace(seen, input_shape=(1, 14, 14), labels=pair[1])


def steps(seed: int) -> Iterator[Row]:
    """Digits of 14 x 14 in pairs of different classes; labels are told in the order "0 1"; double precision for L-BFGS."""
    images, labels = digits("test", 200, seed)
    images = F.avg_pool2d(images, 2)
    model = build_model("lenet", num_classes=10, input_shape=(1, 14, 14), seed=seed).eval().double()
    unrolled = GradientInversion(
        optimizer="lbfgs",
        signed=False,
        learning_rate=1.0,
        line_search=True,
        step_decay=False,
        total_variation=0.0,
        iterations=80,
    )
    chosen = [torch.stack([torch.where(labels == number)[0][at] for number in (at, at + 1)]) for at in range(8)]
    pairs = [(images[rows], labels[rows]) for rows in chosen]
    for order in ([0, 1], [0, 1, 0, 1], [1, 0]):
        seen = [one_by_one(order, pair, model) for pair in pairs]
        for name, attack in (("unrolled", unrolled), ("mean gradient", replace(unrolled, max_unrolled_steps=0))):
            guesses = attack.attack_many(seen, [seeded(1000 * seed + at) for at in range(len(pairs))])
            paired = [PairedGuesses.of(guess.images, pair[0]) for guess, pair in zip(guesses, pairs, strict=True)]
            found, truth = (torch.cat(parts) for parts in zip(*((one.guess, one.truth) for one in paired), strict=True))
            yield " ".join(map(str, order)), name, *scored(found, truth)


QUALITY = ("n", "PSNR, dB", "SSIM")
STUDIES: dict[str, tuple[Callable[[int], Iterator[Row]], Row]] = {
    "refinements": (refinements, ("defence", "attack", *QUALITY)),
    "strength": (strength, ("model", "data", "attack", "iterations", *QUALITY)),
    "membership": (membership, ("records", "attack", "members / others", "AUC", "TPR at 1 % FPR")),
    "policies": (policies, ("defence", "attack", *QUALITY)),
    "encodings": (encodings, ("defence", "attack", *QUALITY)),
    "steps": (steps, ("order of the steps", "matched", *QUALITY)),
}
"""Name -> rows for one seed, and the header of the table without the seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="*", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0], help="of weights, starts, draws and chosen images")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write = functools.partial(print, flush=True)
    for name in options.studies:
        study, header = STUDIES[name]
        write(f"\n{name}\n\n| {' | '.join(header)} | seed |\n|{'---|' * (len(header) + 1)}")
        for seed in options.seeds:
            for row in study(seed):
                write(f"| {' | '.join(row)} | {seed} |")


if __name__ == "__main__":
    main()
