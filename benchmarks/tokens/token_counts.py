"""What attacks on tokens got right: patches of the guessed images, and tokens placed. Imported by ``split_tokens.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attacks.guesses import Reconstruction
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.hermitian_pairing import HermitianPairing
from attacks.smashed.token_puzzle import TokenPuzzle
from attacks.smashed.tokens.jigsaw import TokenJigsaw
from attacks.smashed.tokens.positions import to_patches


def right_patches(guess: Tensor, truth: Tensor, patch: int) -> Tensor:
    """How many patches of each image (N, C, H, W) are closer to the true patch at their position than to any other: (N,)."""
    found, true = to_patches(guess, patch), to_patches(truth, patch)
    apart = torch.cdist(found, true, compute_mode="donot_use_mm_for_euclid_dist")
    own = apart.diagonal(dim1=1, dim2=2).clone()
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    return (own < apart.amin(2)).sum(1)


def placed(attack: SmashedAttack[Any], seen: SmashedData, orders: Tensor) -> list[int] | None:
    """Tokens of each image at their position in the first transmission, or None where the attack places no single tokens."""
    received, count = seen.features[0][: seen.num_targets], seen.features.shape[2]
    if isinstance(attack, TokenJigsaw):
        reader = attack.reader_for(seen)
        found = reader.order(reader(received)) % count
    elif isinstance(attack, HermitianPairing):
        found = attack.positions(received)[0]
    else:
        return None
    return (found == orders[0, : seen.num_targets] % count).sum(1).tolist()


def placed_on(boards: Tensor, orders: Tensor) -> list[int]:
    """Tokens of each image that ``TokenPuzzle`` put at their position in it: boards (T, rows, columns), orders (R, B, N)."""
    numbers = torch.arange(boards.numel()).view(len(boards), -1)
    return (orders[0].flatten()[boards.flatten(1)] == numbers).sum(1).tolist()


def guessed(
    attack: SmashedAttack[Any], hidden: SmashedData, orders: Tensor, seed: int
) -> tuple[Reconstruction, list[int] | None]:
    """The guess, and the tokens of each image that the attack placed, None where it places no received tokens."""
    if not isinstance(attack, TokenPuzzle):
        guess = attack(hidden, torch.Generator().manual_seed(seed))
        return guess, None if guess.failure else placed(attack, hidden, orders)
    patches, boards, numbers = attack.arranged(hidden, torch.Generator().manual_seed(seed))
    one_each = attack.transmissions == 1 or numbers["kept_share"] == 1
    tokens = placed_on(boards, orders) if one_each else None
    return attack.assembled(hidden, patches, boards, numbers), tokens
