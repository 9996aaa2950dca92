"""Every attack on a machine with a card: it computes there, guesses as on the processor, and returns its guess to the host."""

from typing import Any

import pytest
import torch

from attacks.placement import HOST, Placement
from attacks.refinement.base import Refinement
from clients.training.evaluation import device
from tests.card import stand_in
from tests.card.every_attack import Case, cases, first_guesses, tensors_of
from tests.common.test_every_attack import EVERY

ON_HOST = {
    "ClassFishing", "CocktailParty", "HeadInversion", "ImprintLayer", "JointEncodingInversion",
    "MatchedFilter", "PatchEmbeddingInversion", "SpearPlusPlus", "TrapWeights",
}  # fmt: skip
"""Attacks that solve equations on the host."""
SOLVING = {"addmm", "bmm", "linalg_eigh", "linalg_inv_ex", "linalg_lstsq", "linalg_solve_ex", "linalg_svd", "mm"}
"""Operations that they may use there: no forward pass of a network with convolutions."""


def guesses_at(place: Placement, case: Case) -> list[Any]:
    with stand_in.uncounted():
        knowledge, seen = case.knowledge(), case.seen()
    attack = place.fit(case.attack(), knowledge, torch.Generator().manual_seed(9))
    streams = [torch.Generator().manual_seed(at) for at in range(len(seen))]
    if isinstance(attack, Refinement):
        return place.refine_many(attack, seen, first_guesses(seen), streams)
    return place.attack_many(attack, seen, streams)


def test_no_attack_is_left_out() -> None:
    assert {case.name for case in cases()} == set(EVERY)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_an_attack_computes_on_the_card_and_guesses_the_same(case: Case) -> None:
    wanted = guesses_at(Placement(HOST), case)
    with stand_in.counted() as work:
        found = guesses_at(Placement(device()), case)
    assert [guess.failure for guess in found] == [guess.failure for guess in wanted]
    for got, want in zip(map(tensors_of, found), map(tensors_of, wanted), strict=True):
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            assert got[name].device == HOST, name
            # Adam makes whole steps of a gradient that is rounding: 4e-4 was seen. Other draws or data differ by tenths.
            torch.testing.assert_close(got[name], tensor, rtol=1e-3, atol=1e-3, equal_nan=True)
    allowed = SOLVING if case.name in ON_HOST else set()
    assert not work["cpu"].keys() - allowed, f"{case} computes on the host: {dict(work['cpu'])}"
