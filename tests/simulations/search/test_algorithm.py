"""A whole search on real images in seconds: what it chooses, that it repeats, and that a killed one loses and redoes nothing."""

import json
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from defenses import ATS
from defenses.images.ats import parse_policies
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.search.algorithm import PolicySearch
from simulations.search.folder import CANDIDATE, IDENTITY, SINGLE, Scored, SearchFolder
from simulations.search.page import write_search_page
from simulations.search.pictures import score_positions, semi_positions
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from simulations.search.space import disjoint, effect
from tests.simulations.report.report_run import Page
from tests.simulations.search.test_attacked import written

SMALL = Search(
    dataset="photos", model="cnn", images=3, path_steps=3, accuracy_batches=2, semi_epochs=2, candidates=8, longest=2,
    controls=2, workers=1,
)  # fmt: skip
Whole = tuple[dict[str, Any], SearchFolder]
"""The result of a search, and what it left."""


def run(path: Path, search: Search = SMALL) -> Whole:
    folder = SearchFolder.create(path, search)
    result = PolicySearch(folder).run()
    folder.close()
    return result, folder


def pairwise_means(heights: list[float]) -> list[float]:
    return [(before + after) / 2 for before, after in pairwise(heights)]


def untimed(folder: SearchFolder) -> dict[Any, Scored]:
    """All scores, in an order of their own."""
    found = sorted(folder.scored.items(), key=lambda item: item[0])
    return {key: replace(one, scores=replace(one.scores, seconds=0.0)) for key, one in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return run(tmp_path_factory.mktemp("search") / "whole")


def test_it_chooses_the_most_private_that_pass_and_share_no_transform(whole: Whole) -> None:
    result, folder = whole
    least = -1 - 2 * (-1 - folder.scored[IDENTITY, ()].scores.accuracy)
    candidates = [one for one in folder.of(CANDIDATE) if one.scores.accuracy >= least]
    ranked = sorted(candidates, key=lambda one: one.scores.privacy or 0)
    assert parse_policies(result["policies"]) == disjoint([one.policy for one in ranked], 2, 3)
    assert result["accuracy_threshold"] == least
    assert (result["scored"], result["passed"]) == (8, len(candidates))
    # What does not pass has no privacy score: Algorithm 1 asks for the cheap one first.
    assert {one.scores.privacy is None for one in folder.of(CANDIDATE) if one.scores.accuracy < least} <= {True}
    assert {one.policy for one in folder.of(SINGLE)} == {effect((index,), 3) for index in range(50)} - {()}
    lengths = [len(policy) for policy in parse_policies(result["policies"])]
    assert len(result["random"]) == len(set(result["random"])) == 2
    for text in result["random"]:
        assert [len(policy) for policy in parse_policies(text)] == lengths


def test_scores_and_the_semi_trained_model_are_those_of_the_seed(whole: Whole) -> None:
    """In whatever order and process policies are scored; another seed's model is another."""
    _, folder = whole
    kept = folder.weights()
    assert kept is not None
    scorer, known = Scorer(SMALL, kept), folder.of(SINGLE)[5]
    alone = scorer(known.policy, None)
    assert replace(alone, seconds=0.0) == replace(known.scores, seconds=0.0)
    identity = folder.scored[IDENTITY, ()].scores
    # Trapezoids between the points of the curve and its end, which is 1.
    assert identity.privacy == pytest.approx(sum(pairwise_means([*identity.curve, 1.0])) / 3)
    assert identity.accuracy <= -1
    again, other = semi_train(SMALL), semi_train(replace(SMALL, seed=1))
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())
    assert any(not torch.equal(other[name], tensor) for name, tensor in kept.items())


def test_no_image_is_scored_that_the_semi_trained_model_has_seen() -> None:
    data = SMALL.plan().load_data()
    seen, scored = semi_positions(SMALL, data), score_positions(SMALL, data)
    assert len(seen) == round(0.1 * len(data.train))
    assert len(scored) == 3
    assert not set(seen.tolist()) & set(scored.tolist())


def test_the_result_is_what_clients_use_and_its_audit_runs_it_beside_the_controls(whole: Whole) -> None:
    result, folder = whole
    folder.keep_result(result)
    defense = ATS.read(folder.result_path)
    assert defense == ATS(policies=result["policies"], channels=3)
    # Its text travels, and needs no file.
    assert parse(repr(defense)).defenses == (defense,)
    assert "policies.json" not in repr(defense)
    assert "was searched for images of 3 channels, and these have 1" in defense.unfit(1, 28, 28)
    assert defense.unfit(3, 32, 32) == ""
    experiment = Experiment.from_mapping(tomllib.loads((folder.path / "audit.toml").read_text()))
    hybrids = [repr(ATS(text, channels=3)) for text in (result["policies"], *result["random"])]
    assert [str(pipeline) for pipeline in experiment.pipelines] == ["", *hybrids]
    assert (experiment.dataset, experiment.model, experiment.norm) == ("photos", "cnn", "batch")


def test_the_page_shows_the_scores_and_what_attacks_say_once_the_result_was_attacked(
    whole: Whole, tmp_path: Path
) -> None:
    result, folder = whole
    text = write_search_page(folder, result).read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert {"result", "ways", "singles", "scores", "best", "settings"} <= set(page.sections)
    assert "attacked" not in page.sections
    shown = {one["Policy"][0]: one for one in page.table("result")}
    assert set(shown) == {"none", *result["policies"].split("+")}
    for one in result["scores"]:
        for column, key in (("S_pri, released code (chooses)", "privacy"), ("S_pri, paper", "other_privacy")):
            assert shown[one["policy"]][column][0].replace("\N{MINUS SIGN}", "-") == f"{one[key]:.4f}"
    assert [name for name, _ in page.tags].count("svg") == 4
    attacked = SearchFolder(written(tmp_path, (13.0, 12.0), 0.78, result), folder.search, folder.scored)
    page = Page(write_search_page(attacked, result).read_text(encoding="utf-8"))
    recovered = {one["Policies"][0]: one["To the transformed image"][0] for one in page.table("attacked")}
    assert recovered == {
        "none": "20.0 / 19.0", f"{result['policies']} (found)": "13.0 / 12.0", **dict.fromkeys(result["random"], "14.0 / 18.0")
    }  # fmt: skip


def test_a_line_that_was_cut_off_is_scored_again_and_no_other(whole: Whole, tmp_path: Path) -> None:
    for name in ("search.json", "model.safetensors"):
        (tmp_path / name).write_bytes((whole[1].path / name).read_bytes())
    lines = (whole[1].path / "scores.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scores.jsonl").write_text("".join(lines[:-3]) + lines[-3][:40])
    folder = SearchFolder.resume(tmp_path)
    assert len(folder.scored) == len(lines) - 3
    asked: list[Any] = []
    folder.add = lambda one, add=folder.add: asked.append(one.policy) or add(one)  # type: ignore[method-assign, func-returns-value]
    assert PolicySearch(folder).run() == whole[0]
    assert len(asked) == 3
    assert untimed(folder) == untimed(whole[1])
    again = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert len({(one["kind"], tuple(one["policy"])) for one in again}) == len(again) == len(lines)
