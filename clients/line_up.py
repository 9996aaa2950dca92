"""The images among which a client looks for the truth that a guess is nearest to."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.metrics import retrieved
from clients.training import LocalClient
from defenses.base import generator_for

CANDIDATES = 100
"""Images of a line-up: the attacked one and 99 others of its kind, where the client has so many."""
CHUNK = 128
"""Images that are read at once."""


def other_images(client: LocalClient, attacked: Tensor, target: int) -> Tensor:
    """99 images for each attacked one, of the client's own data: (M, C, H, W) in [0, 1], distinct from those and each other.

    They come from the part of the data that the attacked ones are of, and from the other part when that does not suffice; of a
    client with few images there are fewer. They are the same in every round and under every defence.

    Args:
        client: Holds the data.
        attacked: (B, C, H, W), the original images behind one observation.
        target: Number of the observation.
    """
    wanted = (CANDIDATES - 1) * len(attacked)
    generator = generator_for(*client.key("line-up", target))
    parts = [
        torch.randperm(client.num_train, generator=generator),
        client.num_train + torch.randperm(client.num_test, generator=generator),
    ]
    # The server that holds the training images attacks test images.
    order = torch.cat(parts[::-1] if client.task.auxiliary_data == "private" else parts)
    known = {image.numpy().tobytes() for image in attacked.cpu()}
    found: list[Tensor] = []
    images = (image for at in range(0, len(order), CHUNK) for image in client.own_images(order[at : at + CHUNK]))
    for image in itertools.takewhile(lambda _: len(found) < wanted, images):
        if (pixels := image.numpy().tobytes()) not in known:
            known.add(pixels)
            found.append(image)
    return torch.stack(found) if found else attacked[:0].cpu()


def retrieval(
    guess: Reconstruction, pairs: tuple[Tensor, Tensor], truth: Tensor, others: Tensor, *, paired: bool
) -> dict[str, list[float]]:
    """Whether each guess picks its own image out of a line-up.

    Where the wire says which guess is of which image, the line-up of each is its own image and 99 others. Where it does not, the
    assignment lets a guess choose among the B images behind the observation: all B are lined up with all 99 B others, which
    leaves a blind guess at most the same chance of 1 in 100.

    Args:
        guess: The guesses.
        pairs: Indices into guesses and truth, as the other scores use them.
        truth: (B, C, H, W), the original images behind the observation.
        others: (M, C, H, W) as ``other_images`` finds them.
        paired: The wire says which guess is of which image.

    Returns:
        "retrieval-original", 1 or 0 for each pair, and "retrieval-chance", for each the highest chance of a blind guess.
    """
    images, truth = guess.images.detach().cpu(), truth.cpu()
    if not paired:
        hits = retrieved(images[pairs[0]], torch.cat([truth, others]), pairs[1])
        chance = len(truth) / (len(truth) + len(others))
        return {"retrieval-original": hits, "retrieval-chance": [chance] * len(hits)}
    hits, size = [], min(CANDIDATES - 1, len(others))
    for place, (row, column) in enumerate(zip(*pairs, strict=True)):
        # Each image has others of its own, as far as they go round.
        mine = others[(torch.arange(size) + place * size) % max(len(others), 1)]
        hits += retrieved(images[row][None], torch.cat([truth[column][None], mine]), torch.tensor([0]))
    return {"retrieval-original": hits, "retrieval-chance": [1 / (1 + size)] * len(hits)}
