"""A whole search on real images in seconds: what it chooses, that it repeats, and that a killed one loses and redoes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.data.card import DataCard
from defenses import ATS
from defenses.images.ats import parse_policies
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.search.algorithm import PolicySearch, SearchProgress
from simulations.search.folder import CANDIDATE, IDENTITY, SINGLE, Scored, SearchFolder
from simulations.search.page import write_search_page
from simulations.search.pictures import score_positions, semi_positions
from simulations.search.scorer import Scorer, semi_train
from simulations.search.settings import Search
from simulations.search.space import disjoint, effect
from simulations.search.workers import score_all
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


@pytest.mark.long
def test_it_chooses_the_most_private_that_pass_and_share_no_transform(
    whole: Whole,
) -> None:
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


def test_scores_are_those_of_one_policy_alone(whole: Whole) -> None:
    """Whoever scored before, and in which process, changes nothing."""
    _, folder = whole
    scorer = Scorer(SMALL, folder.weights())  # type: ignore[arg-type]
    known = folder.of(SINGLE)[5]
    alone = scorer(known.policy, None)
    assert replace(alone, seconds=0.0) == replace(known.scores, seconds=0.0)
    identity = folder.scored[IDENTITY, ()].scores
    # Trapezoids between the points of the curve and its end, which is 1.
    assert identity.privacy == pytest.approx(sum(pairwise_means([*identity.curve, 1.0])) / 3)
    assert identity.accuracy <= -1


def test_no_image_is_scored_that_the_semi_trained_model_has_seen() -> None:
    data = SMALL.plan().load_data()
    seen, scored = semi_positions(SMALL, data), score_positions(SMALL, data)
    assert len(seen) == round(0.1 * len(data.train))
    assert len(scored) == 3
    assert not set(seen.tolist()) & set(scored.tolist())


@pytest.mark.slow
def test_two_processes_score_the_same(whole: Whole) -> None:
    """Of whole searches that end alike see the one that is killed and taken up again in a process of its own."""
    known = {one.policy: one.scores for one in whole[1].of(SINGLE)[:6]}
    about, several = (SMALL, whole[1].weights()), replace(SMALL, workers=2)
    found = dict(score_all(about, list(known), None, several))
    assert {policy: replace(scores, seconds=0.0) for policy, scores in found.items()} == {
        policy: replace(scores, seconds=0.0) for policy, scores in known.items()
    }


def test_the_semi_trained_model_is_that_of_the_seed_and_another_seed_s_search_is_another(
    whole: Whole,
) -> None:
    again, kept = semi_train(SMALL), whole[1].weights()
    assert kept is not None
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())
    other = semi_train(replace(SMALL, seed=1))
    assert any(not torch.equal(other[name], tensor) for name, tensor in kept.items())


def test_scores_repeat_where_layers_draw() -> None:
    search = replace(SMALL, model="torchvision:mobilenet_v2", norm="batch")
    scorer = Scorer(search, search.plan().build_model().state_dict())
    first = scorer.accuracy(())
    torch.rand(3)
    assert scorer.accuracy(()) == first


def test_the_result_is_what_clients_use(whole: Whole, tmp_path: Path) -> None:
    whole[1].keep_result(whole[0])
    path = whole[1].result_path
    defense = ATS.read(path)
    assert defense == ATS(policies=whole[0]["policies"], channels=3)
    # Its text travels, and needs no file.
    assert parse(repr(defense)).defenses == (defense,)
    assert "policies.json" not in repr(defense)
    assert "was searched for images of 3 channels, and these have 1" in defense.unfit(1, 28, 28)
    assert defense.unfit(3, 32, 32) == ""


def test_the_audit_beside_the_result_is_a_run_of_it_and_of_the_controls(whole: Whole) -> None:
    whole[1].keep_result(whole[0])
    settings = tomllib.loads((whole[1].path / "audit.toml").read_text())
    experiment = Experiment.from_mapping(settings)
    hybrids = [whole[0]["policies"], *whole[0]["random"]]
    assert [str(pipeline) for pipeline in experiment.pipelines] == [
        "",
        *(repr(ATS(text, channels=3)) for text in hybrids),
    ]
    assert (experiment.dataset, experiment.model, experiment.norm) == ("photos", "cnn", "batch")


def test_random_hybrids_have_the_same_lengths_and_share_no_transform(
    whole: Whole,
) -> None:
    lengths = [len(policy) for policy in parse_policies(whole[0]["policies"])]
    assert len(whole[0]["random"]) == len(set(whole[0]["random"])) == 2
    for text in whole[0]["random"]:
        assert [len(policy) for policy in parse_policies(text)] == lengths


def test_the_random_sampler_scores_nothing(tmp_path: Path) -> None:
    result, folder = run(tmp_path / "random", replace(SMALL, sampler="random", policies=3))
    assert len(parse_policies(result["policies"])) == 3
    assert not folder.scored
    assert folder.weights() is None


@pytest.mark.long
def test_a_threshold_that_nothing_passes_ends_the_search_and_keeps_all_scores(tmp_path: Path) -> None:
    result, folder = run(tmp_path / "none", replace(SMALL, accuracy_threshold="-1.0", candidates=2))
    assert result["policies"] == ""
    assert len(folder.of(CANDIDATE)) == 6, "three times as many as asked for, and no more"
    assert "No policy passed" in write_search_page(folder, result).read_text(encoding="utf-8")


@pytest.mark.long
def test_a_transfer_scores_the_result_on_other_images(tmp_path: Path) -> None:
    search = replace(SMALL, candidates=4, transfer_to="mnist-5k", image_size=32, path_steps=2)
    result, folder = run(tmp_path / "transfer", search)
    chosen = parse_policies(result["policies"])
    assert {one.policy for one in folder.of("transfer")} == {(), *chosen}
    mine, theirs = folder.scored[IDENTITY, ()].scores, folder.scored["transfer", ()].scores
    assert mine.accuracy != theirs.accuracy
    assert "On mnist-5k" in write_search_page(folder, result).read_text(encoding="utf-8")


def test_the_page_shows_the_scores_and_the_three_pictures(whole: Whole) -> None:
    result, folder = whole
    page = Page(write_search_page(folder, result).read_text(encoding="utf-8"))
    assert not page.open
    assert {"result", "ways", "singles", "scores", "best", "settings"} <= set(page.sections)
    shown = {one["Policy"][0]: one for one in page.table("result")}
    assert set(shown) == {"none", *result["policies"].split("+")}
    for one in result["scores"]:
        for column, key in (("S_pri, released code (chooses)", "privacy"), ("S_pri, paper", "other_privacy")):
            assert shown[one["policy"]][column][0].replace("\N{MINUS SIGN}", "-") == f"{one[key]:.4f}"
    assert [name for name, _ in page.tags].count("svg") == 4


@pytest.mark.long
def test_the_page_says_which_score_chooses_how_far_the_other_agrees_and_what_it_would_choose(
    whole: Whole, tmp_path: Path
) -> None:
    result, folder = whole
    told = " ".join(Page(write_search_page(folder, result).read_text()).sections["two"].split())
    assert "Policies are chosen by the score of the authors' released code" in told
    scores = [(one.scores.privacy, one.scores.other) for one in folder.of(CANDIDATE) if one.scores.privacy is not None]
    # Spearman's formula for ranks without ties.
    ranks = [[sorted(column).index(value) for value in column] for column in zip(*scores, strict=True)]
    apart = sum((a - b) ** 2 for a, b in zip(*ranks, strict=True))
    count = len(scores)
    assert f"{1 - 6 * apart / (count * (count**2 - 1)):.2f} (95 % interval" in told
    assert f"n = {count})" in told
    by_paper, _ = run(tmp_path / "paper", replace(SMALL, privacy_score="paper"))
    assert by_paper["policies"] != result["policies"], "else the next line says nothing"
    assert f"By the other score the search would have chosen {by_paper['policies']}." in told


def test_the_page_shows_what_attacks_say_once_the_result_was_attacked(whole: Whole, tmp_path: Path) -> None:
    result, folder = whole
    text = write_search_page(folder, result).read_text(encoding="utf-8")
    assert 'id="attacked"' not in text
    assert "fedveil run audit.toml --out audit" in text
    attacked = SearchFolder(written(tmp_path, (13.0, 12.0), 0.78, result), folder.search, folder.scored)
    page = Page(write_search_page(attacked, result).read_text(encoding="utf-8"))
    shown = {one["Policies"][0]: one["To the transformed image"][0] for one in page.table("attacked")}
    assert shown == {
        "none": "20.0 / 19.0", f"{result['policies']} (found)": "13.0 / 12.0", **dict.fromkeys(result["random"], "14.0 / 18.0")
    }  # fmt: skip


def test_steps_are_told_with_the_best_so_far(tmp_path: Path) -> None:
    steps: list[SearchProgress] = []
    folder = SearchFolder.create(tmp_path / "told", SMALL)
    PolicySearch(folder, steps.append).run()
    scored = [step for step in steps if step.what == "policies"]
    assert [(step.done, step.total) for step in scored] == [(at, 8) for at in range(9)]
    best = [step.best[0].scores.privacy for step in scored if step.best]
    assert best == sorted(best, reverse=True)
    assert steps[0].what == "training the semi-trained model"
    assert DataCard.of(SMALL.plan().load_data()).input_shape[0] == 3


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


@pytest.mark.slow
def test_kill_9_and_resume_give_the_scores_of_an_unbroken_search(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "killed"
    settings = [word for key, value in SMALL.to_mapping().items() for word in ("-s", f"{key}={value}")]
    fedveil = [sys.executable, "-c", "from simulations.cli import main; main()", "search"]
    process = subprocess.Popen(
        [*fedveil, *settings, "--out", str(path)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until, scores = time.monotonic() + 120, path / "scores.jsonl"
        while time.monotonic() < until and not (scores.is_file() and scores.read_text().count("\n") >= 5):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = scores.read_bytes()
    assert before.count(b"\n") >= 5
    done = subprocess.run([*fedveil, "--resume", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert scores.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert untimed(SearchFolder.resume(path)) == untimed(whole[1])
    assert json.loads((path / "policies.json").read_text()) == whole[0]
    assert (path / "search.html").is_file()
