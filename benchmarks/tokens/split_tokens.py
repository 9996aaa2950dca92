"""Breaks of patch shuffling at the paper's number of tokens: 196, a grid of 14 x 14, on photographs of 56 pixels.

    python benchmarks/tokens/split_tokens.py --out runs/split_tokens.jsonl
    python benchmarks/tokens/split_tokens.py --out runs/split_tokens.jsonl --print

Clients send squares of scikit-image's photographs through a patch embedding of 4 pixels (48 numbers a token, as many as a patch
has, as in ViT-B/16) and one block, none for PS+. The paper runs PS behind T2T instead, whose tokens overlap (``t2t_order.py``).
All weights are random and fixed, so that no training changes what the server receives. The server learns from other squares of
the same photographs, which share no pixel with the clients', or, with ``--server other``, from photographs of which no client has
a square. One line of the file holds the result of one defence, attack and seed, and a line that is there is not measured again.

- ``recovered``: the report's rule, identified among 100 squares or fewer, and 3 dB above the better of a grey and a mean image.
- ``patches``: positions of an image at which the guess is closer to the true patch than to any other patch of this image.
- ``placed``: tokens whose position the attack found, compared with the true order, which no attack reads. A batch shuffle has no
  such count, because its attack places means of recurring tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for scripts of the folder above

from audit_tables import table
from recovered import count_recovered
from token_counts import guessed, right_patches
from torch import Tensor

from attacks.base import Knowledge
from attacks.image_measures import psnr
from attacks.metrics.images import MAX_PSNR
from attacks.scoring.metrics import null_baselines
from attacks.scoring.roc import binomial_interval
from attacks.sender import Sender
from attacks.smashed.adaptive_decoder import AdaptiveDecoder
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.hermitian_pairing import HermitianPairing
from attacks.smashed.token_puzzle import TokenPuzzle
from attacks.smashed.tokens.intersection import TokenIntersection
from attacks.smashed.tokens.jigsaw import TokenJigsaw
from clients.data.packaged import PHOTOS, photograph
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch, SmashedDefense
from defenses.pipeline import Pipeline
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle

BATCH, CANDIDATES, SMALL, LARGE = 32, 100, 4, 16
MEAN = STD = (0.5, 0.5, 0.5)
LEAST_DETAIL = 6 / 255
"""Root mean square deviation of a square from its own means over 4 x 4 pixels, below which it shows next to nothing."""
DEFENSES: dict[str, SmashedDefense] = {"PS": PatchShuffle(), "BS": BatchShuffle(k=0.4), "PS+": SpectralShuffle()}


def attacks_of(name: str, iterations: int, transmissions: int, patch: int) -> list[SmashedAttack[Any]]:
    """The attacks on a defence, the strongest at 196 tokens first; of large patches the first alone, as networks are slow."""
    puzzles: dict[str, list[SmashedAttack[Any]]] = {
        "PS": [TokenPuzzle(transmissions=1)],
        "BS": [TokenPuzzle(transmissions=transmissions), TokenPuzzle(transmissions=1)][transmissions == 1 :],
        "PS+": [HermitianPairing(reader="statistics")],
    }
    if patch == LARGE:
        return puzzles[name]
    readers: dict[str, SmashedAttack[Any]] = {
        "PS": TokenJigsaw(iterations=iterations),
        "BS": TokenIntersection(iterations=iterations, transmissions=transmissions),
        "PS+": HermitianPairing(iterations=iterations),
    }
    adaptive = AdaptiveDecoder(iterations=300, transmissions=min(transmissions, 4), num_images=256)
    return [*puzzles[name], readers[name], adaptive]


@dataclass(frozen=True)
class Squares:
    """Images (N, 3, S, S) in [0, 1]: those that clients send, those of the server, and further candidates for identification."""

    clients: Tensor
    server: Tensor
    others: Tensor


def squares(side: int, seed: int, server: str, images: int) -> Squares:
    """Squares of the photographs, divided into blocks of twice the side; a third of the blocks, or of the photographs, is clients'.

    Of a client's block, four squares, without overlap. Of a server's block, also squares that overlap, all of them together as one
    reduced square, and mirror images.
    """
    stream = torch.Generator().manual_seed(seed)
    holders = torch.randperm(len(PHOTOS), generator=stream) < round(len(PHOTOS) / 3)
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    for number, name in enumerate(PHOTOS):
        pixels = torch.from_numpy(photograph(name).copy()).permute(2, 0, 1).float() / 255
        for block in pixels.unfold(1, 2 * side, 2 * side).unfold(2, 2 * side, 2 * side).flatten(1, 2).unbind(1):
            held = bool(torch.rand((), generator=stream) < 1 / 3) if server == "same" else bool(holders[number])
            step = side if held else side // 4
            cut = block.unfold(1, side, step).unfold(2, side, step).permute(1, 2, 0, 3, 4).flatten(0, 1)
            if not held:
                cut = torch.cat([cut, F.avg_pool2d(block, 2)[None]])
                cut = torch.cat([cut, cut.flip(-1)])
            parts[held].append(cut)
    clients, public = (detailed(torch.cat(parts[held])) for held in (True, False))
    clients, public = (some[torch.randperm(len(some), generator=stream)] for some in (clients, public))
    return Squares(clients, public, clients[images:CANDIDATES])


def whole_squares(side: int, seed: int, images: int) -> Squares:
    """Squares of the photographs, side by side: so many are clients', and the others the server's, with their mirror images.

    At 224 pixels there are 31 of them, so that seeds share squares, and squares of one photograph depend on each other.
    """
    stream = torch.Generator().manual_seed(seed)
    found = []
    for name in PHOTOS:
        pixels = torch.from_numpy(photograph(name).copy()).permute(2, 0, 1).float() / 255
        found.append(pixels.unfold(1, side, side).unfold(2, side, side).flatten(1, 2).transpose(0, 1))
    every = torch.cat(found)
    every = every[torch.randperm(len(every), generator=stream)]
    return Squares(every[:images], torch.cat([every[images:], every[images:].flip(-1)]), every[images:])


def detailed(images: Tensor) -> Tensor:
    """The images that show something."""
    coarse = F.interpolate(F.avg_pool2d(images, 4), scale_factor=4)
    return images[(images - coarse).square().mean((1, 2, 3)).sqrt() >= LEAST_DETAIL]


def observed(sender: Sender, data: Squares, targets: int, transmissions: int, stream: torch.Generator) -> SmashedData:
    """What the server receives: the first client images in every transmission, beside others that change, where there are any."""
    sent = []
    for _ in range(transmissions):
        rest = targets + torch.randperm(len(data.clients) - targets, generator=stream)[: BATCH - targets]
        sent.append(sender.send_with_order(torch.cat([data.clients[:targets], data.clients[rest]]), stream))
    features, orders = (torch.stack(part) for part in zip(*sent, strict=True))
    nothing = torch.nn.Identity()
    return SmashedData(features.float(), targets, sender.edge, nothing, shape_of(data.clients), MEAN, STD, orders)


def shape_of(images: Tensor) -> tuple[int, int, int]:
    """(C, H, W) of images (N, C, H, W)."""
    return images.shape[1], images.shape[2], images.shape[3]


def scores(guess: Tensor, truth: Tensor, others: Tensor, patch: int) -> dict[str, Any]:
    """Of guesses (N, C, H, W): ``recovered`` of N, and lists of ``psnr`` in dB and right ``patches``."""
    return {
        "recovered": count_recovered(guess, truth, others),
        "psnr": psnr(guess, truth).clamp(max=MAX_PSNR).tolist(),
        "patches": right_patches(guess, truth, patch).tolist(),
    }


def measured(given: argparse.Namespace, name: str, seed: int, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """One line for every attack on a defence that is not done, the null baselines among them."""
    grid = round(given.tokens**0.5)
    patch = given.patch
    data = (
        whole_squares(grid * patch, seed, given.images)
        if patch == LARGE
        else squares(grid * patch, seed, given.server, given.images)
    )
    pipeline = Pipeline((DEFENSES[name],))
    blocks = 0 if name == "PS+" else 1
    shape = SplitShape(patch, 3 * patch**2, 2, 4, blocks, pipeline.widening, pipeline.raw_patches)
    edge = build_split_model("vit", num_classes=8, input_shape=shape_of(data.clients), shape=shape, seed=seed)[0]
    sender = Sender(edge.eval().requires_grad_(False), pipeline, MEAN, STD)
    seen = observed(sender, data, given.images, given.transmissions, torch.Generator().manual_seed(1000 + seed))
    orders, truth, others = seen.orders, data.clients[: given.images], data.others
    assert orders is not None
    hidden = SmashedData(**{**vars(seen), "orders": None})
    about = {
        "tokens": given.tokens,
        "patch": patch,
        "server": given.server,
        "defence": name,
        "seed": seed,
        "n": given.images,
    }
    about |= {"auxiliary": len(data.server), "candidates": given.images + len(others)}

    for kind, null in null_baselines(truth, data.server.mean(0)).items():
        if key({**about, "attack": kind}) not in done:
            yield {**about, "attack": kind, "seconds": 0.0, **scores(null.images, truth, others, patch)}
    knowledge = Knowledge(
        Batch(data.server, torch.ones(len(data.server), 1)), pipeline, MEAN, STD, lambda *_: torch.nn.Identity(), sender
    )
    for attack in attacks_of(name, given.iterations, given.transmissions, patch)[: given.attacks]:
        if key({**about, "attack": repr(attack)}) in done:
            continue
        begun = time.monotonic()
        fitted = attack.limited_to(given.transmissions).fit(knowledge, torch.Generator().manual_seed(seed))
        guess, tokens = guessed(fitted, hidden, orders, seed)
        line = {
            **about,
            "attack": repr(attack),
            "seconds": time.monotonic() - begun,
            **scores(guess.images, truth, others, patch),
        }
        yield {**line, "placed": tokens, "failure": guess.failure, "diagnostics": guess.diagnostics}


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """What a line is about."""
    return tuple(line[part] for part in ("tokens", "patch", "server", "defence", "attack", "seed", "n"))


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, none where it does not exist."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def shown(lines: list[dict[str, Any]]) -> str:
    """The table of finished lines, one row for each defence, attack and seed."""
    rows = []
    for line in sorted(lines, key=lambda one: (one["patch"], one["tokens"], list(DEFENSES).index(one["defence"]))):
        share = binomial_interval(line["recovered"], line["n"])
        interval = f"({100 * share[1]:.0f} to {100 * share[2]:.0f} %)"
        mean, half = with_half(line["psnr"])
        count = line.get("placed")
        rows.append([
            f"{line['tokens']} of {line['patch']} px", line["server"], line["defence"], f"`{line['attack']}`", str(line["seed"]),
            f"{line['recovered']} of {line['n']} {interval}", f"{mean:.1f} ± {half:.1f}",
            "{:.1f} ± {:.1f}".format(*with_half(line["patches"])), "{:.1f} ± {:.1f}".format(*with_half(count)) if count else "-",
            f"{line['seconds']:.0f}",
        ])  # fmt: skip
    columns = ["tokens", "server", "defence", "attack", "seed", "recovered", "PSNR in dB"]
    return table([*columns, "patches right", "tokens placed", "seconds"], rows)


def with_half(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval, by Student's t."""
    from scipy.stats import t

    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), float(t.ppf(0.975, len(values) - 1)) * spread


def main() -> None:
    """Measure what the file lacks, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, continued where it exists")
    parser.add_argument("--print", action="store_true", help="print the file's table and measure nothing")
    parser.add_argument("--tokens", type=int, default=196, choices=(16, 64, 100, 196))
    parser.add_argument("--patch", type=int, default=SMALL, choices=(SMALL, LARGE), help="side of a patch in pixels")
    parser.add_argument("--defences", nargs="+", default=list(DEFENSES), choices=list(DEFENSES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--server", default="same", choices=("same", "other"), help="photographs of the server's squares"
    )
    parser.add_argument("--images", type=int, default=16, help="attacked images a seed")
    parser.add_argument("--transmissions", type=int, default=20, help="how often each attacked image is sent")
    parser.add_argument("--iterations", type=int, default=500, help="training steps of the network that reads tokens")
    parser.add_argument(
        "--attacks", type=int, default=4, help="how many attacks on each defence, the strongest at 196 tokens first"
    )
    given = parser.parse_args()
    if given.patch == LARGE and given.server == "other":
        parser.error(
            f"--server other: at --patch {LARGE} there are too few squares for two sets of photographs; allowed: same"
        )
    torch.set_num_threads(1)
    if not given.print:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        for name in given.defences:
            for seed in given.seeds:
                for line in measured(given, name, seed, {key(one) for one in lines_of(given.out)}):
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(shown([line]).splitlines()[-1], flush=True)
    print(shown(lines_of(given.out)))


if __name__ == "__main__":
    main()
