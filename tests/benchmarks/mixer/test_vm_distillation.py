"""Distillation: its loss, whose images are whose, and a whole study in seconds that computes nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distillation_trial import ARMS, Arm, Trial, distillation_loss, student_loss
from seeded_results import Numbers, Results
from torch import Tensor, nn
from torch.nn import functional as F
from vm_distillation import options, run

from simulations.settings.errors import ConfigError

SMALL = [
    "--seeds", "0", "--dataset", "mnist-5k", "--teacher", "cnn", "--teacher-images", "24", "--student-images", "16",
    "--auxiliary-images", "16", "--outsider-images", "12", "--test-images", "20", "--attacked", "4",
    "--teacher-epochs", "1", "--student-epochs", "1", "--batch-size", "8", "--restorer-iterations", "2",
]  # fmt: skip


def chosen(path: Path, *more: str) -> Any:
    return options().parse_args([*SMALL, "--out", str(path / "out.jsonl"), *more])


def silent(_: str) -> None:
    pass


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """A student's logits, targets and a teacher's logits, in double precision."""
    generator = torch.Generator().manual_seed(1)
    logits, answers = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64) * 3
    targets = F.one_hot(torch.randint(5, (6,), generator=generator), 5).double()
    return logits, targets, answers


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (4.0, 0.9), (20.0, 0.3)])
def test_the_loss_is_hintons_written_out(
    batch: tuple[Tensor, Tensor, Tensor], temperature: float, weight: float
) -> None:
    logits, targets, answers = batch
    expected = 0.0
    for mine, target, told in zip(logits, targets, answers, strict=True):
        q, hard = (mine / temperature).softmax(0), mine.softmax(0)
        p = (told / temperature).softmax(0)
        soft = sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True))
        expected += (1 - weight) * -float(hard[target.argmax()].log()) + weight * temperature**2 * soft
    assert float(distillation_loss(logits, targets, answers, temperature, weight)) == pytest.approx(expected / 6)


def test_a_teacher_of_no_weight_leaves_the_cross_entropy(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, answers = batch
    assert torch.equal(distillation_loss(logits, targets, answers, 4.0, 0.0), F.cross_entropy(logits, targets))


def test_a_student_that_answers_as_its_teacher_has_nothing_to_learn(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    _, targets, answers = batch
    logits = answers.clone().requires_grad_()
    loss = distillation_loss(logits, targets, answers, 4.0, 1.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < 1e-12


def test_at_a_high_temperature_logits_are_matched(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """Hinton et al., Eq. 4: with logits of mean 0, T^2 KL tends to half the mean squared difference of the logits."""
    logits, targets, answers = (of - of.mean(1, keepdim=True) for of in batch)
    expected = (logits - answers).square().mean(1).mean() / 2
    assert float(distillation_loss(logits, targets, answers, 1e4, 1.0)) == pytest.approx(float(expected), rel=1e-3)


def test_training_finds_the_answers_beside_the_targets(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, answers = batch
    found = student_loss(3.0, 0.4)(nn.Identity(), logits, torch.cat([targets, answers], 1))
    assert torch.equal(found, distillation_loss(logits, targets, answers, 3.0, 0.4))


def test_images_of_all_roles_are_disjoint_and_other_seeds_draw_others(tmp_path: Path) -> None:
    found = {seed: Trial(chosen(tmp_path), seed, None).plain for seed in (0, 1)}  # type: ignore[arg-type]
    seen = [bytes(image.numpy()) for batch in found[0].values() for image in batch.images]
    assert len(seen) == len(set(seen)) == 24 + 16 + 16 + 12 + 20
    assert not torch.equal(found[0]["test"].images, found[1]["test"].images)


def test_models_in_use_see_draws_that_no_upload_had(tmp_path: Path) -> None:
    trial = Trial(chosen(tmp_path), 0, None)  # type: ignore[arg-type]
    sent, shown = trial.uploads("teacher", protected=True).images, trial.shown("teacher", protected=True).images
    plain = trial.plain["teacher"].images
    for image, upload, use in zip(plain, sent, shown, strict=True):
        assert not torch.equal(upload, image)
        assert not torch.equal(upload, use)
        assert torch.equal(upload.flatten().sort().values, image.flatten().sort().values)
    assert torch.equal(trial.uploads("teacher", protected=False).images, plain)
    assert torch.equal(trial.shown("teacher", protected=False).images, plain)


def test_a_whole_study_and_one_that_goes_on_computes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    train = Trial.train

    def counted(self: Trial, arm: Arm) -> tuple[nn.Module, Numbers]:
        trained.append(next(name for name, one in ARMS.items() if one == arm))
        return train(self, arm)

    monkeypatch.setattr(Trial, "train", counted)
    whole = run(chosen(tmp_path), silent)
    assert trained == list(ARMS)
    text = whole.path.read_text()
    # Killed behind both teachers, which later arms need: they are taken from where they were kept.
    whole.path.write_text("".join(text.splitlines(keepends=True)[:3]))
    trained.clear()
    again = run(chosen(tmp_path), silent)
    assert trained == ["SO", "SV", "CO", "CV"]
    for arm in ARMS:
        assert untimed(again, arm) == untimed(whole, arm)
    trained.clear()
    lines: list[str] = []
    run(chosen(tmp_path), lines.append)
    assert trained == []
    assert sum(line.startswith("seed 0, ") for line in lines) == len(ARMS)
    assert "| SV - SO | 1 |" in lines[-1]
    assert "AUC, student's uploads" in lines[-1]


def untimed(results: Results, arm: str) -> dict[str, Any]:
    found = results.find(0, arm)
    assert found is not None
    return {key: value for key, value in found.items() if "seconds" not in key}


def test_a_teacher_of_no_weight_gives_the_control(tmp_path: Path) -> None:
    found = run(chosen(tmp_path, "--weight", "0"), silent)
    for distilled, alone in (("SO", "CO"), ("SV", "CV")):
        mine, control = untimed(found, distilled), untimed(found, alone)
        assert mine == control
        assert control["as_uploaded"] == pytest.approx(100.0) if alone == "CO" else control["as_uploaded"] < 30
        assert ("WindowMean" in control) == (alone == "CV")


def test_membership_is_told_under_other_draws_and_under_those_of_the_uploads(tmp_path: Path) -> None:
    """A student that knows its 32 uploads by heart: whoever has these tells more than who has the plain pictures."""
    # At the usual learning rate of 0.03 training diverges or not by the processor's vector instructions.
    some = ("--student-images", "32", "--student-epochs", "100", "--outsider-images", "64")
    more = (*some, "--student-learning-rate", "0.01")
    trial = Trial(chosen(tmp_path, *more), 0, None)  # type: ignore[arg-type]
    model, quality = trial.train(ARMS["CV"])
    assert quality["curve"][-1][2] < 0.01
    protected, plain = trial.membership(ARMS["CV"], model), trial.membership(ARMS["CO"], model)
    assert protected["auc_uploaded_student"] > protected["auc_student"] > 0.7
    assert protected["auc_uploaded_teacher"] < 0.6, "it has not seen these"
    for role in ("teacher", "student"):
        assert plain[f"auc_uploaded_{role}"] == plain[f"auc_{role}"], "nothing is drawn"


def test_more_images_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"4044 images are asked for of a part of mnist-5k that has 4000"):
        run(chosen(tmp_path, "--teacher-images", "4000"), silent)


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--temperature", "0", "temperature is 0"), ("--weight", "1.5", "weight 1.5"), ("--attacked", "17", "attacked is 17"),
     ("--defense", "VisualMixer(window=3)", "defenses"), ("--dataset", "mnist-6k", "did you mean 'mnist-5k'")],
)  # fmt: skip
def test_settings_out_of_range_are_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, named: str
) -> None:
    monkeypatch.setattr(Trial, "train", None)
    with pytest.raises(ConfigError, match=named):
        run(chosen(tmp_path, option, value), silent)
