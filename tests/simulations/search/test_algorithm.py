"""A whole search on real images in seconds: what it chooses, that it repeats, and that a killed one loses and redoes nothing."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from defenses import ATS
from defenses.images.ats import parse_policies
from defenses.spec import parse
from simulations.search.algorithm import PolicySearch
from simulations.search.scorer import PATH_STEPS, Scorer, positions, semi_train
from simulations.search.settings import Search
from simulations.search.space import disjoint
from strategies.audit.whole_files import load_tensors

SMALL = Search(dataset="photos", model="cnn", images=3, semi_epochs=2, candidates=8, workers=1)
Whole = tuple[dict[str, Any], PolicySearch]
"""The result of a search, and what it left."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    search = PolicySearch.create(tmp_path_factory.mktemp("search") / "whole", SMALL)
    result = search.run()
    search.close()
    return result, search


def test_it_chooses_the_most_private_that_pass_and_share_no_transform(whole: Whole) -> None:
    result, search = whole
    least = -1 - 2 * (-1 - search.scored[()].accuracy)
    candidates = {policy: scores for policy, scores in search.scored.items() if policy}
    passed = [policy for policy, scores in candidates.items() if scores.accuracy >= least]
    ranked = sorted(passed, key=lambda policy: (candidates[policy].privacy or 0, policy))
    assert parse_policies(result["policies"]) == disjoint(ranked, 2, 3)
    assert result["accuracy_threshold"] == least
    assert (result["scored"], result["passed"]) == (8, len(passed))
    # What does not pass has no privacy score: Algorithm 1 asks for the cheap one first.
    assert {scores.privacy is None for policy, scores in candidates.items() if policy not in passed} <= {True}
    lengths = [len(policy) for policy in parse_policies(result["policies"])]
    assert len(result["random"]) == len(set(result["random"])) == 10
    for text in result["random"]:
        assert [len(policy) for policy in parse_policies(text)] == lengths


def test_scores_and_the_semi_trained_model_are_those_of_the_seed(whole: Whole) -> None:
    _, search = whole
    kept, _ = load_tensors(search.path / "model.safetensors")
    scorer, policy = Scorer(SMALL, kept), list(search.scored)[5]
    assert scorer(policy, search.least) == search.scored[policy]
    # Trapezoids between the points of the curve and its end, which is 1.
    curve = scorer.curves(()).mean(0).tolist()
    assert len(curve) == PATH_STEPS == 20
    identity = search.scored[()]
    assert identity.privacy == pytest.approx(sum((a + b) / 2 for a, b in pairwise([*curve, 1.0])) / 20)
    assert identity.accuracy <= -1
    again, other = semi_train(SMALL), semi_train(SMALL.but(seed=1))
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())
    assert any(not torch.equal(other[name], tensor) for name, tensor in kept.items())


def test_no_image_is_scored_that_the_semi_trained_model_has_seen() -> None:
    data = SMALL.plan().load_data()
    seen, scored = positions(SMALL, data)
    assert len(seen) == round(0.1 * len(data.train))
    assert len(scored) == 3
    assert not set(seen.tolist()) & set(scored.tolist())


def test_the_result_is_what_clients_use(whole: Whole) -> None:
    result, search = whole
    assert json.loads(search.result_path.read_text()) == result
    defense = ATS.read(search.result_path)
    assert defense == ATS(policies=result["policies"], channels=3)
    # Its text travels, and needs no file.
    assert parse(repr(defense)).defenses == (defense,)
    assert "policies.json" not in repr(defense)
    assert "was searched for images of 3 channels, and these have 1" in defense.unfit(1, 28, 28)
    assert defense.unfit(3, 32, 32) == ""


def test_a_line_that_was_cut_off_is_scored_again_and_no_other(whole: Whole, tmp_path: Path) -> None:
    for name in ("search.json", "model.safetensors"):
        (tmp_path / name).write_bytes((whole[1].path / name).read_bytes())
    lines = (whole[1].path / "scores.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scores.jsonl").write_text("".join(lines[:-3]) + lines[-3][:40])
    search = PolicySearch.resume(tmp_path, {})
    assert len(search.scored) == len(lines) - 3
    assert search.run() == whole[0]
    search.close()
    assert search.scored == whole[1].scored
    assert (tmp_path / "scores.jsonl").read_text() == "".join(lines), "those that were there stay as they were"


@pytest.mark.long
def test_two_processes_give_the_scores_of_one(whole: Whole, tmp_path: Path) -> None:
    search = PolicySearch.create(tmp_path, SMALL.but(workers=2))
    result = search.run()
    search.close()
    assert result["policies"] == whole[0]["policies"]
    for policy, scores in whole[1].scored.items():
        assert list(search.scored[policy]) == [one if one is None else pytest.approx(one, abs=1e-4) for one in scores]
