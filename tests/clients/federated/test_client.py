"""One client's work, its recipe of training, and training alone, against what can be computed by hand."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchvision.transforms import functional as TF  # type: ignore[import-untyped]

from attacks.gradient.noise_models import gradient_noise
from attacks.guesses import Labels, Reconstruction
from attacks.local_model import shared_tensors
from attacks.membership.loss_threshold import Membership
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from clients.data.augmentation import random_crop_and_flip
from clients.federated.client import Ledger, LocalClient, TrainingError
from clients.federated.local_training import train_alone
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import audit_baselines, audit_guesses, defense_totals
from clients.scoring.image_scores import recognition
from clients.task.local_data import LocalData
from clients.task.scenarios import read_task
from clients.task.task import Task, TaskError, WholeModelPlan, load_weights
from clients.training.evaluation import device, evaluate, set_eval
from defenses import VisualMixer
from defenses.base import Batch
from defenses.spec import parse
from defenses.training.accounting import ORDERS, epsilon_by_accountant
from defenses.updates.clipping import Clip
from strategies.audit.kinds import Observed
from strategies.federated.observations import PROBE, SeenUpdate
from tests.scores import flat

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.0,
    weight_decay=0.01, probe_targets=2, probe_images=2,
).at(1)  # fmt: skip


def client_of(task: Task) -> LocalClient:
    return LocalClient(LocalData(task, 0, range(0, 40), range(0, 20)))


def client(**changes: object) -> LocalClient:
    return client_of(TASK.but(**changes))


def weights(task: Task = TASK) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in shared_tensors(task.plan.build_model()).items()}


def assert_one_step(update: dict[str, Tensor], batch: Batch, size: float = 0.0, task: Task = TASK) -> None:
    """One step of SGD on the sum of the losses over ``size``, the number of examples unless given."""
    model = task.plan.build_model()
    loss = F.cross_entropy(model(normalise(batch.images, task.plan.data_card())), batch.targets, reduction="sum")
    gradients = torch.autograd.grad(loss / (size or len(batch)), list(model.parameters()))
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        expected = -task.learning_rate * (gradient + task.plan.weight_decay * parameter.detach())
        torch.testing.assert_close(update[name], expected, atol=1e-6, rtol=1e-4)


def length(update: dict[str, Tensor]) -> float:
    return torch.cat([value.flatten() for value in update.values()]).norm().item()


def test_a_probe_and_a_single_step_are_the_gradient_of_the_examples_that_they_name() -> None:
    for one in (client(), client(local_steps=7)):
        probed = one.probe(weights(), {})
        assert (len(probed.updates), probed.num_examples, probed.local_steps) == (2, TASK.plan.probe_images, 1)
        assert_one_step(probed.updates[1], one.probed(1).original)
    # Without noise and with a clip that never acts, DP-SGD sums over the Poisson sample and divides by its expected size.
    for pipeline, size in (("", 16.0), ("DPSGD(noise_multiplier=0.0, max_grad_norm=1e6)", 40 / 3)):
        limited = client(local_steps=1, pipeline=pipeline)
        used, batch = limited.trained_on(), limited.data.originals()
        named = Batch(batch.images[used], batch.targets[used])
        assert_one_step(limited.train(weights(), {}).updates[0], named, size)
        assert not torch.equal(used, client(local_steps=1, round=2, pipeline=pipeline).trained_on())
    assert torch.equal(client().trained_on(), torch.arange(40))


def test_a_probe_of_several_steps_is_so_many_steps_of_torch_sgd_on_the_images_that_its_truth_names() -> None:
    for pipeline in ("", "DPSGD(noise_multiplier=0.0, max_grad_norm=1e6)"):
        task = TASK.but(probe_images=3, probe_steps=4, momentum=0.5, local_steps=2, pipeline=pipeline)
        many = client_of(task)
        result, views = many.probe(weights(), {}), many.truths("steps").views
        assert (len(result.updates), result.num_examples, result.local_steps) == (2, 12, 4)
        for update, truth in zip(result.updates, views, strict=True):
            model = load_weights(TASK.plan.build_model(), weights())
            optimizer = torch.optim.SGD(model.parameters(), lr=TASK.learning_rate, momentum=0.5, weight_decay=0.01)
            for at in range(0, 12, 3):
                images, targets = truth.original.images[at : at + 3], truth.original.targets[at : at + 3]
                optimizer.zero_grad()
                F.cross_entropy(model(normalise(images, TASK.plan.data_card())), targets).backward()
                optimizer.step()
            for name, value in shared_tensors(model).items():
                torch.testing.assert_close(update[name], value - weights()[name], atol=1e-6, rtol=1e-4)
        shown = torch.cat([view.positions for view in views])
        assert len(shown.unique()) == 24
        single = client(probe_images=3, probe_targets=8)
        alone = torch.cat([single.probed_positions(target) for target in range(8)])
        assert torch.equal(shown, alone), "the same people"
    spent = client(probe_images=3, probe_steps=4, pipeline="DPSGD(noise_multiplier=1.0)").probe(weights(), {})
    assert sum(steps for *_, steps in spent.ledger["probe"]["accountant"]["steps"]) == 2 * 4


def test_probed_images_are_the_same_in_every_round_and_pipeline_and_no_one_is_probed_twice() -> None:
    first = client().probed(0).original.images
    assert torch.equal(first, client(round=2).probed(0).original.images)
    mixed = client(pipeline="VisualMixer()").probed(0)
    assert torch.equal(first, mixed.original.images)
    assert not torch.equal(first, mixed.seen.images)
    many = client(probe_targets=20)
    images = torch.cat([many.probed(target).original.images for target in range(20)])
    assert len(images) == 40
    assert len(images.unique(dim=0)) == len(client().data.plain(torch.arange(40)).images.unique(dim=0))


def test_windows_are_counted_over_all_images_as_they_reach_the_shuffle() -> None:
    mixer = "VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')"
    mixing = client(pipeline=mixer)
    (shuffle,) = mixing.pipeline.defenses
    assert isinstance(shuffle, VisualMixer)
    images = mixing.data.originals().images
    plain, told = shuffle.totals(images, images), defense_totals(mixing)
    reported = flat(audit_baselines(mixing, "probe", pictures=False))
    assert {n: v for n, v in reported.items() if n[0] == ":"} == {f":{n}": [float(v)] for n, v in told.items()}
    after = told.pop("vfe-sum-after")
    assert min(plain.values()) > 0
    assert plain.pop("vfe-sum-after") == plain["vfe-sum-before"]  # of images that were not shuffled
    assert told == pytest.approx({**plain, "counted-images": 40})
    assert after > 1.5 * told["vfe-sum-before"]
    blurred = defense_totals(client(pipeline=f"Blur(std=3.0) | {mixer}"))
    assert blurred["windows-of-8"] > told["windows-of-8"]  # the blur leaves less flat
    assert defense_totals(client(pipeline="Blur(std=3.0)")) == {}


def test_local_steps_are_that_many_steps_and_examples_beyond_an_epoch_too() -> None:
    taken = []
    hook = register_optimizer_step_post_hook(lambda *_: taken.append(1))
    for count, examples in ((1, 16), (2, 32), (3, 40), (7, 40)):  # an epoch is three steps: of 16, 16 and 8 examples
        taken.clear()
        limited = client(local_steps=count)
        result = limited.train(weights(), {})
        assert len(taken) == result.local_steps == count
        assert result.num_examples == len(limited.trained_on()) == examples
    hook.remove()
    assert client(local_epochs=2, local_steps=0).train(weights(), {}).local_steps == 6


@pytest.mark.long
def test_a_privacy_budget_covers_the_limited_steps() -> None:
    for count, rounds in [(3, 4), (2, 2), (1, 20)]:
        private = {"pipeline": "DPSGD(target_epsilon=2.0, accountant='rdp')", "local_epochs": 9}
        private |= {"local_steps": count, "rounds": rounds}
        ledger: Ledger = {}
        taken: list[str] = []
        hook = register_optimizer_step_post_hook(lambda one, *_, taken=taken: taken.append(type(one).__name__))
        for at in range(rounds):
            limited = client(**private, round=at + 1)
            result = limited.train(weights(), ledger)
            ledger = result.ledger
            assert result.num_examples == min(40, 16 * count), "the size of the sample that was drawn stays private"
            assert 0 < len(limited.trained_on()) <= 40
        hook.remove()
        assert taken.count("SGD") == count * rounds
        direct = RDPAccountant()
        for _ in range(count * rounds):
            direct.step(noise_multiplier=ledger["train"]["noise_multiplier"] / 2, sample_rate=1 / 3)
        assert result.metrics["epsilon"] == pytest.approx(direct.get_epsilon(1e-5, alphas=list(ORDERS)))
        assert 1.99 < result.metrics["epsilon"] <= 2.0
        probed = limited.probe(weights(), ledger)
        assert probed.ledger["probe"]["noise_multiplier"] == ledger["train"]["noise_multiplier"]
        assert probed.metrics["epsilon-with-probes"] > 2.0, "a probe has no subsampling"


@pytest.mark.numeric
def test_limited_private_steps_are_poisson_samples_at_the_accounted_rate() -> None:
    drawn = torch.zeros(60, 2, 40)
    for at in range(60):
        limited = client(pipeline="DPSGD(noise_multiplier=1.0)", local_steps=2, rounds=60, round=at + 1)
        for step, positions in enumerate(limited._drawn()):
            drawn[at, step, positions] = 1
    deviation = (1 / 3 * 2 / 3 / 2400) ** 0.5
    for step in range(2):
        assert abs(drawn[:, step].mean().item() - 1 / 3) < 5 * deviation
    both = (drawn[:, 0] * drawn[:, 1]).mean().item()
    assert abs(both - 1 / 9) < 5 * (1 / 9 * 8 / 9 / 2400) ** 0.5
    assert drawn.sum(2).var().item() > 4, "the size of a Poisson sample varies, with variance 40 * 2 / 9"


def test_global_weights_are_not_changed_and_divergence_is_an_error() -> None:
    before = weights()
    given = copy.deepcopy(before)
    client().train(given, {})
    assert all(torch.equal(before[name], given[name]) for name in before)
    with pytest.raises(TrainingError, match="lower learning-rate"):
        client(learning_rate=1e30, weight_decay=1.0, local_epochs=9).train(before, {})


def test_a_bound_of_what_one_example_tells_lets_no_exact_number_out_beside_the_update() -> None:
    private, plain = (client(pipeline=text).train(weights(), {}) for text in ("DPSGD(noise_multiplier=1.0)", ""))
    terms = {f"budget-{name}" for name in ("noise-multiplier", "clipping-norm", "sample-rate", "steps")}
    assert set(private.metrics) == {"epsilon", "delta", "train-seconds"} | terms
    assert set(plain.metrics) == {"train-loss", "train-seconds"}
    other = LocalClient(LocalData(TASK.but(pipeline="DPSGD(noise_multiplier=1.0)"), 0, [*range(39), 77], range(0, 20)))
    theirs = other.train(weights(), {})
    told = [{**r.metrics, "train-seconds": 0.0, "n": r.num_examples, "steps": r.local_steps} for r in (private, theirs)]
    assert told[0] == told[1]


def test_training_after_probes_tells_what_both_have_spent_after_the_last_round() -> None:
    private = client(pipeline="DPSGD(noise_multiplier=2.5, accountant='rdp')")
    assert "epsilon-with-probes" not in private.train(weights(), {}).metrics, "nobody probed"
    ledger, spent = private.probe(weights(), {}).ledger, []
    for at in (1, TASK.plan.rounds):
        private = client(pipeline="DPSGD(noise_multiplier=2.5, accountant='rdp')", round=at)
        trained = private.train(weights(), ledger)
        ledger = trained.ledger
        spent.append(trained.metrics.get("epsilon-with-probes"))
    assert spent.pop(0) is None, "of many probes it takes seconds"
    for rounds, found in enumerate(spent, 2):
        orders = list(ORDERS)
        of_training = compute_rdp(q=1 / 3, noise_multiplier=2.5 / 2, steps=3 * rounds, orders=orders)
        of_probes = compute_rdp(q=1.0, noise_multiplier=2.5 / 2, steps=TASK.plan.probe_targets, orders=orders)
        both, _ = get_privacy_spent(orders=orders, rdp=of_training + of_probes, delta=1e-5)
        assert found == pytest.approx(both, rel=1e-9)


def unseen(guesses: list[Reconstruction]) -> list[tuple[Any, None]]:
    return [(guess, None) for guess in guesses]


def test_the_audit_scores_against_original_and_transformed() -> None:
    mixing = client(pipeline="VisualMixer()")
    truth = [mixing.probed(0), mixing.probed(1)]
    perfect = [Reconstruction(t.original.images.flip(0), t.original.targets.argmax(1).flip(0)) for t in truth]
    scores = flat(audit_guesses(mixing, "probe", unseen(perfect)))
    assert scores["psnr-original"] == [100.0] * 4, "the order of a batch is not the attacker's to know"
    assert max(scores["psnr-transformed"]) < 30
    assert scores["label-accuracy"] == [1.0, 1.0]
    leaked = [Reconstruction(t.seen.images, t.seen.targets.argmax(1)) for t in truth]
    swapped = flat(audit_guesses(mixing, "probe", unseen(leaked)))
    assert swapped["psnr-transformed"] == [100.0] * 4
    assert max(swapped["psnr-original"]) < 30
    assert flat(audit_guesses(mixing, "probe", unseen(perfect[:1])))["label-accuracy"] == [1.0], "of the first alone"
    with pytest.raises(ValueError, match="4 guesses for 2 observations"):
        audit_guesses(mixing, "probe", unseen(perfect * 2))


def test_a_limited_round_is_scored_against_the_examples_it_used_and_labels_as_multisets() -> None:
    limited = client(local_steps=1)
    used, images = limited.trained_on(), limited.data.originals().images
    classes = limited.data.originals().targets.argmax(1)

    def scored(guess: Any) -> dict[str, list[float]]:
        return flat(audit_guesses(limited, "update", [(guess, None)]))

    assert scored(Labels(classes[used].sort().values))["label-accuracy"] == [1.0]
    wrong = torch.cat([(classes[used[:1]] + 1) % 10, classes[used[1:]]])
    assert scored(Labels(wrong))["label-accuracy"] == [15 / 16]
    assert scored(Reconstruction(images[used[:8]], classes[used[:8]]))["psnr-original"] == [100.0] * 8
    test = Membership(limited.task.plan.build_model().eval())
    members = test.scores(normalise(images[used], limited.data.card), classes[used]).tolist()
    assert scored(test)["member-score"] == pytest.approx(members, rel=1e-4)
    others = [at for at in range(40) if at not in used.tolist()]
    assert max(scored(Reconstruction(images[others[:8]], classes[used[:8]]))["psnr-original"]) < 40


def test_recognition_pairs_images_and_evaluation_reports_what_is_deployed() -> None:
    mine = client()
    truth = mine.probed(0).original
    classes = truth.targets.argmax(1)
    guess = Reconstruction(truth.images.flip(0), torch.full((len(truth),), -1))
    assert recognition(guess, classes.flip(0), truth) == [1.0] * len(truth)
    assert recognition(guess, (classes.flip(0) + 1) % 10, truth) == [0.0] * len(truth)
    plain, mixing = client().evaluate(weights()), client(pipeline="VisualMixer()").evaluate(weights())
    assert plain["test-loss-original"] == plain["test-loss-transformed"]
    assert mixing["test-loss-original"] == pytest.approx(plain["test-loss-original"])
    assert mixing["test-loss-transformed"] != mixing["test-loss-original"]
    assert plain["num-examples"] == 20


@pytest.mark.numeric
def test_noise_per_step_is_in_the_unit_of_the_gradient_and_grows_as_the_attack_says() -> None:
    # One plain step sends -lr * (g + weight decay * w + noise).
    plain, noisy = (client(pipeline=text).probe(weights(), {}).updates[0] for text in ("", "GaussianNoise(std=0.5)"))
    noise = torch.cat([(noisy[name] - plain[name]).flatten() for name in plain]) / -TASK.learning_rate
    deviation = 0.5 / len(noise) ** 0.5
    assert abs(noise.std().item() - 0.5) < 5 * deviation / 2**0.5
    assert abs(noise.mean().item()) < 5 * deviation
    # Over several steps: the same training with and without noise, where the gradient hardly changes at a tiny learning rate.
    task = {"learning_rate": 1e-4, "momentum": 0.9, "nesterov": True, "local_steps": 5, "batch_size": 40}
    runs = [client(pipeline=text, **task).train(weights(), {}).updates[0] for text in ("", "GaussianNoise(std=10.0)")]
    noise = torch.cat([(runs[1][name] - runs[0][name]).flatten() for name in runs[0]])
    seen = ClientUpdate(
        TASK.plan.build_model(), runs[1], (1, 28, 28), (0.0,), (1.0,), 40, 40, 5, 1e-4, 0.01, momentum=0.9, nesterov=True
    )  # fmt: skip
    expected = gradient_noise(seen, 0.0, 10.0) * 1e-4 * 5 * seen.step_length
    assert noise.std().item() == pytest.approx(expected, rel=0.03)


def test_a_defence_acts_in_every_step_or_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Clip.protect_update
    for text, times in [("step", 6), ("update", 1)]:
        calls: list[int] = []
        monkeypatch.setattr(Clip, "protect_update", lambda *given, calls=calls: calls.append(1) or original(*given))
        clipped = client(pipeline=f"Clip(max_norm=0.001, per={text!r})", local_epochs=2, weight_decay=0.0)
        update = clipped.train(weights(), {}).updates[0]
        assert len(calls) == times
        # Six steps of at most lr * 0.001 each, which hardly turn; or 0.001 once.
        least, most = (4e-3, 6e-3) if text == "step" else (9e-3, 1e-2)
        assert TASK.learning_rate * least < length(update) <= TASK.learning_rate * most * 1.001


def test_after_the_last_round_epsilon_is_reported_by_every_accountant() -> None:
    for pipeline in ["DPSGD(noise_multiplier=4.0)", "DPSGD(noise_multiplier=4.0, accountant='rdp')"]:
        ledger: Ledger = {}
        for at in (1, 2):
            result = client(pipeline=pipeline, local_steps=3, rounds=2, round=at).train(weights(), ledger)
            ledger, found = result.ledger, {n: v for n, v in result.metrics.items() if n.startswith("epsilon-by-")}
            if at == 1:
                assert not found
        steps = {"accountant": {"steps": [[2.0, 1 / 3, 6]]}}
        assert found == {f"epsilon-by-{name}": value for name, value in epsilon_by_accountant(steps, 1e-5).items()}
        assert result.metrics["epsilon"] == found["epsilon-by-rdp" if "rdp" in pipeline else "epsilon-by-pld"]
        assert found["epsilon-by-pld"] < found["epsilon-by-rdp"]


def gradient(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(normalise(batch.images, TASK.plan.data_card())), batch.targets)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def torchvision_views(image: Tensor, padding: int, *, flip: bool) -> list[Tensor]:
    padded, (height, width) = TF.pad(image, [padding]), image.shape[-2:]
    places = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
    crops = [TF.crop(padded, top, left, height, width) for top, left in places]
    return crops + [TF.hflip(crop) for crop in crops] * flip


@pytest.mark.numeric
def test_crops_and_flips_are_those_of_torchvision_each_equally_often_and_leave_the_input_alone() -> None:
    for padding, flip in [(1, True), (2, False), (0, True)]:
        image = torch.rand(3, 6, 5)
        possible = torch.stack(torchvision_views(image, padding, flip=flip))
        views = random_crop_and_flip(image.expand(9000, -1, -1, -1), padding, flip, torch.Generator().manual_seed(1))
        same = (views[:, None] == possible[None]).flatten(2).all(2)
        assert bool((same.sum(1) == 1).all())
        counts = same.sum(0).double()
        expected = 9000 / len(possible)
        # 99.99 % of a chi-square with as many degrees of freedom stays below mean + 5 standard deviations.
        freedom = len(possible) - 1
        assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 5 * (2 * freedom) ** 0.5
        assert views.shape == (9000, 3, 6, 5)
    images = torch.rand(64, 1, 8, 8)
    before = images.clone()
    views = random_crop_and_flip(images, 3, True, torch.Generator().manual_seed(0))
    assert torch.equal(images, before)
    again = random_crop_and_flip(images, 3, True, torch.Generator().manual_seed(0))
    assert torch.equal(views, again)
    assert torch.equal(random_crop_and_flip(images, 0, False, torch.Generator()), images)


def test_rounds_are_torch_sgd_with_nesterov_and_multi_step_lr() -> None:
    recipe = {"momentum": 0.9, "nesterov": True, "milestones": (1, 3), "batch_size": 40, "local_epochs": 2}
    state, reference = weights(), TASK.plan.build_model()
    schedule_of = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=TASK.learning_rate)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(schedule_of, milestones=[1, 3], gamma=0.1)
    for server_round in range(1, 6):
        one = client_of(TASK.but(**recipe, rounds=5).plan.at(server_round))
        update = one.train(state, {}).updates[0]
        rate = scheduler.get_last_lr()[0]
        assert one.task.learning_rate == pytest.approx(rate, rel=1e-12)
        optimizer = torch.optim.SGD(reference.parameters(), rate, 0.9, weight_decay=0.01, nesterov=True)
        for _ in range(2):
            optimizer.zero_grad()
            images = normalise(one.data.originals().images, TASK.plan.data_card())
            F.cross_entropy(reference(images), one.data.originals().targets).backward()
            optimizer.step()
        schedule_of.step()
        scheduler.step()
        state = {name: weight + update[name] for name, weight in state.items()}
        for name, value in shared_tensors(reference).items():
            torch.testing.assert_close(state[name], value, atol=2e-5, rtol=1e-3)
    assert read_task(one.task.to_json()) == one.task


def test_a_probe_is_the_gradient_by_hand_in_its_mode_and_attacks_are_told() -> None:
    for probe_mode in ["train", "eval"]:
        normed = {"model": "resnet20", "norm": "batch", "image_size": 16, "momentum": 0.9, "nesterov": True}
        task = TASK.but(**normed, milestones=(1,), probe_mode=probe_mode).plan.at(2)
        one = client_of(task)
        # Running statistics that are not those of any batch, as after training.
        start = {name: value + 0.3 if "running" in name else value for name, value in weights(task).items()}
        update = one.probe(start, {}).updates[1]
        model = load_weights(task.plan.build_model(), start).train(probe_mode == "train")
        expected = gradient(model, one.probed(1).original)
        seen = SeenUpdate(0, 1, 2, update, 1, train_mode=probe_mode == "train")
        sent = Observed(task, start, [seen])
        (observation,) = PROBE.observations(Observed.of(sent.about(), sent.tensors(), SeenUpdate))
        assert observation.train_mode == (probe_mode == "train")
        for name, value in observation.gradient().items():
            torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=1e-3)
        moved = [name for name in update if "running" in name and update[name].any()]
        assert bool(moved) == (probe_mode == "train")


def test_eval_mode_leaves_hooked_layers_to_opacus_and_turns_dropout_off() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GroupNorm(2, 4)).train()
    set_eval(model, keep_hooked=True)
    assert [module.training for module in model] == [True, False, True]
    set_eval(model)
    assert not any(module.training for module in model.modules())
    augmented, whole = (client(**more).evaluate(weights()) for more in (AUGMENTED, {}))
    assert augmented == whole, "test images are not cropped"
    private = {"pipeline": "DPSGD(noise_multiplier=0.0, max_grad_norm=1e6)", "probe_mode": "eval"}
    update = client(**private).probe(weights(), {}).updates[0]
    plain = client().probe(weights(), {}).updates[0]
    for name, value in update.items():
        torch.testing.assert_close(value, plain[name], atol=1e-6, rtol=1e-4)


AUGMENTED = {"crop_padding": 4, "horizontal_flip": True}


def test_crops_come_before_the_defences_and_the_audit_knows_them_in_rounds_and_probes() -> None:
    policy = "ATS(policies='42-28-42+14-48-48')"
    for pipeline, steps in (("", 0), (policy, 0), (policy, 1), ("Downsample(factor=4)", 0), ("ImageNoise()", 0)):
        changes = {**AUGMENTED, "pipeline": pipeline, "local_steps": steps, "batch_size": 16 if steps else 40}
        one, plain = client(**changes), client()
        views, probed, used = one.trained_views(), one.probed(1), one.trained_on()
        assert len(used) == len(views.seen) == (16 if steps else 40)
        assert_one_step(one.train(weights(), {}).updates[0], views.seen)
        assert_one_step(one.probe(weights(), {}).updates[1], probed.seen)
        held = plain.data.originals().images[used]
        for seen, own in ((views.original.images, held), (probed.original.images, plain.probed(1).original.images)):
            for image, whole in zip(seen[:5], own, strict=False):
                assert any(torch.equal(image, view) for view in torchvision_views(whole, 4, flip=True))
        assert not torch.equal(views.original.images, held)
        assert torch.equal(views.seen.images, views.original.images) == (pipeline == "")
        if pipeline.startswith("Downsample"):
            by_hand = one.pipeline.protect_once(views.original, ("any",)).images
            assert torch.equal(views.seen.images, by_hand)
        other = client(**changes, round=2).trained_views()
        assert not torch.equal(other.original.images, views.original.images)
    assert len(client(**AUGMENTED, local_epochs=2).trained_views().seen) == 40


def test_training_alone_repeats_and_counts_the_limited_steps_of_all_rounds() -> None:
    batch, taken = client().data.originals(), []
    hook = register_optimizer_step_post_hook(lambda *_: taken.append(1))
    for count in (2, 5):
        task = TASK.but(rounds=3, local_epochs=4, local_steps=count)
        first, again, other = (shared_tensors(train_alone(task.plan, batch, seed)) for seed in (1, 1, 2))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)
    hook.remove()
    assert len(taken) == 3 * 3 * (2 + 5)
    assert not train_alone(TASK.but(rounds=1).plan, batch, 1).training


def test_training_alone_descends_on_protected_examples_and_by_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    for pipeline in ["", "Downsample(factor=4)", "Clip(max_norm=0.001, per='update')"]:
        task = TASK.but(rounds=3, local_epochs=2, batch_size=40, weight_decay=0.0, pipeline=pipeline)
        batch, card = client().data.originals(), task.plan.data_card()
        # Where the training of this seed begins.
        model = train_alone(replace(WholeModelPlan.narrow(task.plan), learning_rate=1e-30), batch, 7)
        optimizer = torch.optim.SGD(model.parameters(), task.learning_rate)
        seen = parse(pipeline).protect_once(batch, ("any",))
        for _ in range(task.plan.rounds):
            begun = [parameter.detach().clone() for parameter in model.parameters()]
            for _ in range(task.plan.local_epochs):
                optimizer.zero_grad()
                F.cross_entropy(model(normalise(seen.images, card)), seen.targets).backward()
                optimizer.step()
            if "Clip" in pipeline:  # of a whole round's update, not of a step's
                with torch.no_grad():
                    long = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), begun, strict=True)]).norm()
                    assert long > 0.001
                    for parameter, old in zip(model.parameters(), begun, strict=True):
                        parameter.copy_(old + (parameter - old) * (0.001 / long))
        trained = train_alone(task.plan, batch, 7)
        for (name, parameter), expected in zip(trained.named_parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected, atol=1e-5, rtol=1e-3, msg=name)
    batch = client().data.originals()
    monkeypatch.setattr("clients.task.task.DECAY", 1e-9)
    task = TASK.but(milestones=(1,))
    stopped, single = train_alone(task.plan, batch, 5), train_alone(task.but(rounds=1, milestones=()).plan, batch, 5)
    for (name, left), right in zip(stopped.named_parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5, msg=name)


def test_what_was_evaluated_before_changes_no_score() -> None:
    # Also where other weights came in between, some of them unusable, and for a model with statistics of its own.
    for changes in ({}, {"norm": "batch", "model": "cnn"}):
        task = TASK.but(**changes)
        one, other = weights(task), {name: tensor + 0.1 for name, tensor in weights(task).items()}
        data = LocalData(task, 0, range(4), range(10))
        models = [load_weights(task.plan.build_model(), sent).to(device()) for sent in (one, other)]
        fresh = [evaluate(data, model) for model in models]
        mine = LocalClient(data)
        assert [mine.evaluate(one), mine.evaluate(other)] == fresh
        with pytest.raises(TaskError):
            mine.evaluate({**other, next(reversed(other)): torch.zeros(1)})
        assert mine.evaluate(one) == fresh[0] != fresh[1]
