from __future__ import annotations

import argparse

import pytest
import split_tokens
import torch
from token_counts import right_patches

from attacks.smashed.tokens.positions import from_patches, to_patches

GIVEN = argparse.Namespace(tokens=16, patch=4, server="same", images=16, transmissions=2, iterations=2, attacks=2)


@pytest.mark.parametrize("server", ["same", "other"])
def test_the_server_holds_no_square_of_a_client(server):
    data = split_tokens.squares(56, 0, server, 16)
    assert len(data.clients) >= 100
    assert len(data.server) > len(data.clients)
    shown = data.server.flatten(1)
    assert torch.cdist(data.clients[:20].flatten(1), shown).min() > 1
    assert not torch.equal(data.clients[:5], split_tokens.squares(56, 1, server, 16).clients[:5])


def test_patches_are_right_where_they_are_at_their_place():
    truth = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    turned = from_patches(to_patches(truth, 4).roll(1, 1), 4, (3, 16, 16))
    assert right_patches(truth, truth, 4).tolist() == [16, 16]
    assert right_patches(turned, truth, 4).tolist() == [0, 0]
    assert right_patches(torch.cat([truth[:, :, :4], turned[:, :, 4:]], 2), truth, 4).tolist() == [4, 4]
    assert right_patches(truth, torch.full_like(truth, 0.5), 4).tolist() == [0, 0]


def test_what_is_in_the_file_is_not_measured_again():
    first = list(split_tokens.measured(GIVEN, "PS", 0, set()))
    assert [line["attack"] for line in first] == [
        "grey",
        "mean",
        "TokenPuzzle(transmissions=1)",
        "TokenJigsaw(iterations=2)",
    ]
    assert len(first[-1]["placed"]) == len(first[-2]["placed"]) == 16
    assert sum(first[-2]["placed"]) > 64, "a random order places one token of an image"
    assert not list(split_tokens.measured(GIVEN, "PS", 0, {split_tokens.key(line) for line in first}))
    assert "| 16 of 4 px | same | PS | `mean` | 0 | 0 of 16" in split_tokens.shown(first)
