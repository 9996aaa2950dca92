"""Which hybrids are judged, on which images: each once, disjoint, reproducible, and not where they alter nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.data.datasets import load_dataset
from defenses.images.ats import parse_policies
from defenses.random_draws import generator_for
from simulations.search.measured.pools import HELD_OUT, SEARCH, SHARES, parts_of, split, write_pools
from simulations.search.measured.proposals import CONTROL, RANDOM, candidates, controls, hybrids_of
from simulations.search.measured.settings import Measured
from simulations.search.measured.unaltered import MOST, Sample
from simulations.search.space import overlap, sample

pytestmark = pytest.mark.usefixtures("as_its_own_process")
SETTINGS = Measured(dataset="mnist-5k", candidates=12, by_score=0, controls=5)
DATA = {"dataset": "mnist-5k", "data_dir": "", "image_size": 0, "train_limit": 0, "test_limit": 0, "seed": 3}
FULL = torch.linspace(0, 1, 784).view(1, 1, 28, 28)
"""It has all levels, so that autocontrast has nothing to stretch."""


def nothing(what: str, done: int, of: int) -> None:
    """Of a display."""


def test_candidates_and_controls_are_disjoint_reproducible_and_alter_images() -> None:
    found, others = candidates(SETTINGS, "mnist-5k", nothing), controls(SETTINGS, "mnist-5k")
    assert found == candidates(SETTINGS, "mnist-5k", nothing)
    assert found != candidates(replace(SETTINGS, seed=1), "mnist-5k", nothing)
    assert {one.origin for one in found} == {RANDOM}
    assert [one.origin for one in others] == [CONTROL] * 5
    assert len({one.hybrid for one in (*found, *others)}) == 12 + 5
    without_first = controls(SETTINGS, "mnist-5k", {others[0].hybrid})
    assert [one.hybrid for one in without_first[:4]] == [one.hybrid for one in others[1:]]
    images = Sample.of(SETTINGS, "mnist-5k")
    for one in (*found, *others):
        policies = parse_policies(one.hybrid)
        assert not any(overlap(a, b, 1) for a, b in itertools.combinations(policies, 2))
        assert all(images.unaltered(policy) <= MOST for policy in policies), one.hybrid


def test_hybrids_by_score_begin_with_the_best_and_are_of_the_better_half() -> None:
    ranked = [(9,), (9, 3), (1,), (2,), (3,)]
    # 9 and 9-3 share a transform; a policy that is in a hybrid already begins none, and is taken again where no other is left.
    assert hybrids_of(ranked, 2, 9, 3) == ["9+1", "9-3+2", "3+9"]
    assert hybrids_of(ranked, 2, 1, 3) == ["9+1"]
    search = Measured(candidates=80)
    drawn = list(itertools.islice(sample(generator_for("test", 0), 1), search.to_score))
    found = hybrids_of(drawn, search.policies, search.by_score_wanted, 1)
    assert len(found) == 40
    assert max(drawn.index(policy) for hybrid in found for policy in parse_policies(hybrid)) < len(drawn) / 2


def test_the_share_of_unaltered_images_is_that_of_images_that_stay_alike() -> None:
    images = Sample(torch.cat([FULL, FULL, FULL, 0.3 + 0.2 * FULL]), seed=0)
    assert images.unaltered((28,)) == 1.0  # solarize above the whitest level
    assert images.unaltered((8,)) == 0.75  # autocontrast stretches the flat one alone
    assert images.unaltered((0,)) == 0.0  # invert
    assert images.unaltered((0, 0)) == 1.0  # twice
    assert not images.altered_by(((0,), (8,)))
    assert images.altered_by(((0,), (3,)))  # inverted, or shifted


def test_every_example_is_in_one_part_and_a_run_loads_the_parts(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(5), [10, 20, 50, 100, 1000])
    rows = split(labels, 0)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(labels)))
    for part, share in SHARES.items():
        assert np.bincount(labels[rows[part]]).tolist() == [round(share * n) for n in (10, 20, 50, 100, 1000)]
    parts = parts_of(**DATA)
    seen = [{image.numpy().tobytes() for one in parts[part] for image in one.images} for part in (SEARCH, HELD_OUT)]
    assert not seen[0] & seen[1]
    few = DATA | {"train_limit": 30, "test_limit": 20}
    for part, place in write_pools(tmp_path, few).items():
        data = load_dataset(place)
        assert (len(data.train), len(data.test)) == (30, 20)
        torch.testing.assert_close(data.train.images, parts_of(**few)[part][0].images)
