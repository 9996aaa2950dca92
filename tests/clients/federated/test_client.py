"""One client's work, against what can be computed by hand."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from attacks.gradient.noise_models import gradient_noise
from attacks.guesses import Labels, Reconstruction
from attacks.local_model import shared_tensors
from attacks.membership.loss_threshold import Membership
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from clients.federated.client import Ledger, LocalClient, TrainingError
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import audit_baselines, audit_guesses, defense_totals
from clients.scoring.image_scores import recognition
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import LocalData
from clients.task.task import Task, load_weights
from defenses import VisualMixer
from defenses.training.accounting import ORDERS, epsilon_by_accountant
from defenses.updates.clipping import Clip
from tests.scores import flat

TASK = FederatedPlan(
    scenario="federated",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=16, learning_rate=0.1, momentum=0.0,
    weight_decay=0.01, probe_targets=2, probe_images=2,
).at(1)  # fmt: skip


def client(**changes: object) -> LocalClient:
    return LocalClient(LocalData(TASK.but(**changes), 0, range(0, 40), range(0, 20)))


def weights(task: Task = TASK) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in shared_tensors(task.plan.build_model()).items()}


def test_a_probe_is_one_gradient_step_on_the_probed_images() -> None:
    updates = client().probe(weights(), {}).updates
    assert len(updates) == 2
    model = TASK.plan.build_model()
    batch = client().probed(1).original
    loss = F.cross_entropy(model(normalise(batch.images, TASK.plan.data_card())), batch.targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        expected = -TASK.learning_rate * (gradient + TASK.plan.weight_decay * parameter.detach())
        torch.testing.assert_close(updates[1][name], expected, atol=1e-6, rtol=1e-4)


def test_told_windows_are_those_that_the_probed_images_were_shuffled_in() -> None:
    """Each told window holds the same values before and after, and a larger one would not be told."""
    mixing = client(pipeline="VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')")
    seen, sides = mixing.probed(1), mixing.probed_windows(1)
    assert sides is not None
    assert sides.shape == (2, 28, 28)
    assert len(sides.unique()) > 1
    changed = 0
    for image, size in ((i, int(s)) for i in range(2) for s in sides[i].unique()):
        for top, left in itertools.product(range(0, 28, size), range(0, 28, size)):
            box = (slice(top, top + size), slice(left, left + size))
            if (sides[image][box] != size).any():
                continue
            before, after = (batch.images[image, 0][box].flatten() for batch in (seen.original, seen.seen))
            assert torch.equal(before.sort().values, after.sort().values)
            changed += not torch.equal(before, after)
    assert changed > 5
    assert client(pipeline="Blur() | VisualMixer()").probed_windows(0) is None
    assert client().probed_windows(0) is None


def test_windows_are_counted_over_all_images_as_they_reach_the_shuffle() -> None:
    """Without another defence, and behind one that makes all images flat."""
    mixer = "VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')"
    (shuffle,) = client(pipeline=mixer).pipeline.defenses
    assert isinstance(shuffle, VisualMixer)
    images = client().data.originals().images
    plain = shuffle.totals(images, images)
    assert min(plain.values()) > 0
    told = defense_totals(client(pipeline=mixer))
    after = told.pop("vfe-sum-after")
    assert plain.pop("vfe-sum-after") == plain["vfe-sum-before"]  # of images that were not shuffled
    assert told == pytest.approx({**plain, "counted-images": 40})
    assert after > 1.5 * told["vfe-sum-before"]
    reported = flat(audit_baselines(client(pipeline=mixer), "probe", pictures=False))
    assert {name: values for name, values in reported.items() if not name.split(":")[0]} == {
        f":{name}": [float(number)] for name, number in defense_totals(client(pipeline=mixer)).items()
    }
    blurred = defense_totals(client(pipeline=f"Blur(std=3.0) | {mixer}"))
    assert blurred["windows-of-8"] > told["windows-of-8"]  # the blur leaves less flat
    mean_vfe = [
        found["vfe-sum-before"] / sum(found[name] for name in found if name.startswith("windows"))
        for found in (blurred, told)
    ]
    assert mean_vfe[0] < 0.9 * mean_vfe[1]
    assert defense_totals(client(pipeline="Blur(std=3.0)")) == {}


def test_training_equals_a_plain_loop_over_the_same_batches() -> None:
    result = client(local_epochs=2).train(weights(), {})
    again = client(local_epochs=2).train(weights(), {})
    assert all(torch.equal(result.updates[0][name], again.updates[0][name]) for name in result.updates[0])
    assert (result.num_examples, result.local_steps) == (40, 6)
    whole_batch = client(local_epochs=3, batch_size=40, weight_decay=0.0)
    model = load_weights(TASK.plan.build_model(), weights())
    images, targets = (
        normalise(whole_batch.data.originals().images, TASK.plan.data_card()),
        whole_batch.data.originals().targets,
    )
    for _ in range(3):
        loss = F.cross_entropy(model(images), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= TASK.learning_rate * gradient
    update = whole_batch.train(weights(), {}).updates[0]
    for name, value in shared_tensors(model).items():
        torch.testing.assert_close(update[name], value - weights()[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("count", [1, 5])
def test_local_steps_are_that_many_steps_of_torch_sgd(count: int) -> None:
    """A batch of everyone leaves no doubt about the order; one step is an epoch, so that five are more than local-epochs."""
    limited = client(local_steps=count, local_epochs=2, batch_size=40, momentum=0.5)
    result = limited.train(weights(), {})
    assert (result.num_examples, result.local_steps) == (40, count)
    model = load_weights(TASK.plan.build_model(), weights())
    optimizer = torch.optim.SGD(model.parameters(), lr=TASK.learning_rate, momentum=0.5, weight_decay=0.01)
    images, targets = (
        normalise(limited.data.originals().images, TASK.plan.data_card()),
        limited.data.originals().targets,
    )
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()
    for name, value in shared_tensors(model).items():
        torch.testing.assert_close(result.updates[0][name], value - weights()[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("count", "examples"), [(1, 16), (2, 32), (3, 40), (4, 40), (7, 40)])
def test_a_limited_round_says_how_many_examples_it_used(count: int, examples: int) -> None:
    """An epoch is three steps: of 16, 16 and 8 examples."""
    taken = []
    hook = register_optimizer_step_post_hook(lambda *_: taken.append(1))
    limited = client(local_steps=count)
    result = limited.train(weights(), {})
    hook.remove()
    assert len(taken) == result.local_steps == count
    assert result.num_examples == len(limited.trained_on()) == examples
    assert result.updates[0].keys() == weights().keys()


def test_one_local_step_is_the_gradient_of_the_examples_it_names() -> None:
    limited = client(local_steps=1)
    used, batch = limited.trained_on(), limited.data.originals()
    model = TASK.plan.build_model()
    loss = F.cross_entropy(model(normalise(batch.images[used], TASK.plan.data_card())), batch.targets[used])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = limited.train(weights(), {}).updates[0]
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        expected = -TASK.learning_rate * (gradient + TASK.plan.weight_decay * parameter.detach())
        torch.testing.assert_close(update[name], expected, atol=1e-6, rtol=1e-4)
    assert not torch.equal(used, client(local_steps=1, round=2).trained_on()), "every round draws anew"
    assert torch.equal(client().trained_on(), torch.arange(40))


def test_without_a_limit_local_epochs_decide_and_probes_stay_one_step() -> None:
    assert client(local_epochs=2, local_steps=0).train(weights(), {}).local_steps == 6
    probed = client(local_steps=7).probe(weights(), {})
    assert (probed.num_examples, probed.local_steps) == (TASK.plan.probe_images, 1)
    plain = client().probe(weights(), {})
    assert all(torch.equal(probed.updates[0][name], value) for name, value in plain.updates[0].items())


def test_the_poisson_sample_of_a_private_step_is_the_one_that_is_named() -> None:
    """Without noise and with a clip that never acts, the update is the sum over that sample by its expected size."""
    private = client(local_steps=1, pipeline="DPSGD(noise_multiplier=0.0, max_grad_norm=1e6)")
    used, batch = private.trained_on(), private.data.originals()
    model = private.task.plan.build_model()
    images = normalise(batch.images[used], TASK.plan.data_card())
    loss = F.cross_entropy(model(images), batch.targets[used], reduction="sum") / (40 / 3)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = private.train(weights(), {}).updates[0]
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        expected = -TASK.learning_rate * (gradient + TASK.plan.weight_decay * parameter.detach())
        torch.testing.assert_close(update[name], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("count", "rounds"), [(3, 4), (2, 2), (1, 20)])
def test_a_privacy_budget_covers_the_limited_steps(count: int, rounds: int) -> None:
    """Accounted from outside: every step of the optimizer, at a rate of one in three, with the noise that was chosen."""
    private = {"pipeline": "DPSGD(target_epsilon=2.0)", "local_epochs": 9, "local_steps": count, "rounds": rounds}
    ledger: Ledger = {}
    taken: list[str] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: taken.append(type(optimizer).__name__))
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


def test_limited_private_steps_are_poisson_samples_at_the_accounted_rate() -> None:
    """Two of three steps of an epoch, over 60 rounds: everyone is in a step with probability 1/3, alone and in pairs of steps."""
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


def test_probed_images_are_the_same_in_every_round_and_pipeline() -> None:
    first = client().probed(0).original.images
    assert torch.equal(first, client(round=2).probed(0).original.images)
    mixed = client(pipeline="VisualMixer()").probed(0)
    assert torch.equal(first, mixed.original.images)
    assert not torch.equal(first, mixed.seen.images)
    assert not torch.equal(first, client().probed(1).original.images)
    assert len(client(pipeline="InstaHide()").probed(0).seen) == TASK.plan.probe_images


def test_no_two_probes_show_the_same_person_until_all_were_shown() -> None:
    """Twenty probes of two images from 40 examples: all of them, once; a score of a repeated image is no second observation."""
    many = client(probe_targets=20)
    images = torch.cat([many.probed(target).original.images for target in range(20)])
    assert len(images) == 40
    assert len(images.unique(dim=0)) == len(client().data.plain(torch.arange(40)).images.unique(dim=0))


def test_a_bound_of_what_one_example_tells_lets_no_exact_number_out_beside_the_update() -> None:
    """Two clients that differ in one example alone: whatever a reply of DP-SGD says of the round's images is noised or absent."""
    private, plain = (client(pipeline=text).train(weights(), {}) for text in ("DPSGD(noise_multiplier=1.0)", ""))
    assert set(private.metrics) == {"epsilon", "delta", "train-seconds"}
    assert set(plain.metrics) == {"train-loss", "train-seconds"}
    other = LocalClient(LocalData(TASK.but(pipeline="DPSGD(noise_multiplier=1.0)"), 0, [*range(39), 77], range(0, 20)))
    theirs = other.train(weights(), {})
    told = [{**r.metrics, "train-seconds": 0.0, "n": r.num_examples, "steps": r.local_steps} for r in (private, theirs)]
    assert told[0] == told[1]


def test_batch_norm_statistics_travel_in_the_update_and_under_its_defences() -> None:
    task = TASK.but(model="resnet20", norm="batch", image_size=32, learning_rate=0.01)
    mine = LocalClient(LocalData(task, 0, range(0, 40), range(0, 20)))
    update = mine.train(weights(task), {}).updates[0]
    assert update[
        "bn.running_mean" if "bn.running_mean" in update else next(n for n in update if n.endswith("running_mean"))
    ].any()
    assert not any(name.endswith("num_batches_tracked") for name in update)
    pruned = LocalClient(
        LocalData(task.but(pipeline="Pruning(fraction=1.0, per='update')"), 0, range(0, 40), range(0, 20))
    ).train(weights(task), {})
    assert not any(value.any() for value in pruned.updates[0].values())


@pytest.mark.long
def test_dp_probes_use_the_training_s_noise_and_their_own_books() -> None:
    private = client(pipeline="DPSGD(target_epsilon=2.0)")
    probed = private.probe(weights(), {})
    trained = private.train(weights(), probed.ledger)
    assert trained.ledger["train"]["noise_multiplier"] == probed.ledger["probe"]["noise_multiplier"]
    assert trained.metrics["epsilon"] <= 2.0
    assert probed.metrics["epsilon-with-probes"] > 2.0, "a probe has no subsampling: it costs more than the training"
    again = private.train(weights(), trained.ledger)
    assert trained.metrics["epsilon"] < again.metrics["epsilon"] <= 2.0


def test_training_after_probes_tells_what_both_have_spent() -> None:
    """Renyi divergences of all steps add up at each order, and one order decides: no sum of the two budgets."""
    private = client(pipeline="DPSGD(noise_multiplier=2.5)")
    assert "epsilon-with-probes" not in private.train(weights(), {}).metrics, "nobody probed"
    ledger, spent = private.probe(weights(), {}).ledger, []
    for _ in range(2):
        trained = private.train(weights(), ledger)
        ledger = trained.ledger
        spent.append(trained.metrics["epsilon-with-probes"])
    for rounds, found in enumerate(spent, 1):
        orders = list(ORDERS)
        of_training = compute_rdp(q=1 / 3, noise_multiplier=2.5 / 2, steps=3 * rounds, orders=orders)
        of_probes = compute_rdp(q=1.0, noise_multiplier=2.5 / 2, steps=TASK.plan.probe_targets, orders=orders)
        both, _ = get_privacy_spent(orders=orders, rdp=of_training + of_probes, delta=1e-5)
        assert found == pytest.approx(both, rel=1e-9)


def unseen(guesses: list[Reconstruction]) -> list[tuple[Any, None]]:
    """Guesses that no oracle looked at."""
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
    assert (
        swapped["psnr-original"] == pytest.approx(scores["psnr-transformed"][::-1], abs=1e-3)
        or max(swapped["psnr-original"]) < 30
    )
    with pytest.raises(ValueError, match="1 guesses for 2 observations"):
        audit_guesses(mixing, "probe", unseen(perfect[:1]))


def test_baselines_know_nothing_and_pictures_stay_unless_shared() -> None:
    mine = client()
    audited = audit_baselines(mine, "probe", pictures=False)
    grey = [
        float(10 * torch.log10(1 / ((image - 0.5) ** 2).mean()))
        for t in (0, 1)
        for image in mine.probed(t).original.images
    ]
    assert sorted(flat(audited)["grey:psnr-original"]) == pytest.approx(sorted(grey), abs=1e-3)
    assert not audited.pictures
    shared = audit_baselines(mine, "probe", pictures=True).pictures
    assert torch.equal(shared["original-0"], mine.probed(0).original.images)


def test_label_scores_count_multisets() -> None:
    mine = client()
    classes = mine.data.originals().targets.argmax(1)
    wrong = classes.clone()
    wrong[:10] = (wrong[:10] + 1) % 10
    assert flat(audit_guesses(mine, "update", [(Labels(classes.sort().values), None)]))["label-accuracy"] == [1.0]
    value = flat(audit_guesses(mine, "update", [(Labels(wrong.sort().values), None)]))["label-accuracy"][0]
    assert 0.75 <= value < 1.0


def test_a_limited_round_is_scored_against_the_examples_it_used() -> None:
    limited = client(local_steps=1)
    used = limited.data.originals().targets.argmax(1)[limited.trained_on()]
    scores = flat(audit_guesses(limited, "update", [(Labels(used.sort().values), None)]))
    assert scores["label-accuracy"] == [1.0]
    guess = Reconstruction(limited.data.originals().images[limited.trained_on()[:8]], used[:8])
    assert flat(audit_guesses(limited, "update", [(guess, None)]))["psnr-original"] == [100.0] * 8
    others = [at for at in range(40) if at not in limited.trained_on().tolist()]
    wrong = Reconstruction(limited.data.originals().images[others[:8]], used[:8])
    assert max(flat(audit_guesses(limited, "update", [(wrong, None)]))["psnr-original"]) < 40


def test_members_of_a_limited_round_are_the_examples_it_used() -> None:
    for limited in (client(local_steps=1), client()):
        test = Membership(limited.task.plan.build_model().eval())
        scores = flat(audit_guesses(limited, "update", [(test, None)]))
        used = limited.trained_on()
        images, classes = limited.data.originals().images[used], limited.data.originals().targets.argmax(1)[used]
        expected = test.scores(normalise(images, limited.data.card), classes)
        assert scores["member-score"] == pytest.approx(expected.tolist(), rel=1e-4)
        assert len(scores["other-score"]) == len(limited.data.test_plain(torch.arange(limited.data.num_test)))
    assert len(used) > len(client(local_steps=1).trained_on())


def test_evaluation_reports_protected_test_images_only_where_they_are_deployed() -> None:
    plain, mixing = client().evaluate(weights()), client(pipeline="VisualMixer()").evaluate(weights())
    assert plain["test-loss-original"] == plain["test-loss-transformed"]
    assert mixing["test-loss-original"] == pytest.approx(plain["test-loss-original"])
    assert mixing["test-loss-transformed"] != mixing["test-loss-original"]
    assert plain["num-examples"] == 20


def test_recognition_pairs_images_before_it_compares_classes() -> None:
    mine = client()
    truth = mine.probed(0).original
    classes = truth.targets.argmax(1)
    guess = Reconstruction(truth.images.flip(0), torch.full((len(truth),), -1))
    assert recognition(guess, classes.flip(0), truth) == [1.0] * len(truth)
    assert recognition(guess, (classes.flip(0) + 1) % 10, truth) == [0.0] * len(truth)


def test_membership_is_scored_by_the_client_on_all_of_its_records() -> None:
    mine = client()
    model = mine.task.plan.build_model()
    scores = flat(audit_guesses(mine, "update", [(Membership(model.eval()), None)]))
    assert (len(scores["member-score"]), len(scores["other-score"])) == (mine.data.num_train, mine.data.num_test)
    losses = [-value for value in scores["other-score"]]
    assert sum(losses) / len(losses) == pytest.approx(
        mine.evaluate(shared_tensors(model))["test-loss-original"], rel=1e-4
    )


def test_the_server_s_examples_are_nobody_else_s_and_cover_all_classes() -> None:
    task = TASK.but(auxiliary_fraction=0.25)
    data = task.plan.load_data()
    indices = Auxiliary(task.plan).indices(data.train.labels.numpy())
    assert len(indices) == round(0.25 * len(data.train)) == len(set(indices.tolist()))
    assert len(set(data.train.labels[torch.from_numpy(indices)].tolist())) == data.num_classes
    assert len(Auxiliary(task.plan).examples()) == len(indices)
    assert len(Auxiliary(TASK.plan).examples()) == 0


def test_noise_per_step_is_in_the_unit_of_the_gradient() -> None:
    """One plain step sends -lr * (g + weight decay * w + noise)."""
    plain, noisy = (client(pipeline=text).probe(weights(), {}).updates[0] for text in ("", "GaussianNoise(std=0.5)"))
    noise = torch.cat([(noisy[name] - plain[name]).flatten() for name in plain]) / -TASK.learning_rate
    assert noise.std().item() == pytest.approx(0.5, rel=0.03)
    assert abs(noise.mean().item()) < 0.02


@pytest.mark.parametrize(("text", "times"), [("step", 6), ("update", 1)])
def test_a_defence_acts_in_every_step_or_once(text: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = Clip.protect_update
    monkeypatch.setattr(Clip, "protect_update", lambda *given: calls.append(1) or original(*given))
    clipped = client(pipeline=f"Clip(max_norm=0.001, per={text!r})", local_epochs=2, weight_decay=0.0)
    update = clipped.train(weights(), {}).updates[0]
    length = torch.cat([value.flatten() for value in update.values()]).norm().item()
    assert len(calls) == times
    # Six steps of at most lr * 0.001 each, which hardly turn; or 0.001 once.
    assert length <= (6 * TASK.learning_rate * 0.001 if text == "step" else 0.001) * 1.001
    assert length > (4 * TASK.learning_rate * 0.001 if text == "step" else 0.0009)


def test_noise_per_step_grows_over_the_steps_as_the_attack_says() -> None:
    """Difference of the same training with and without noise, where the gradient itself hardly changes: a tiny learning rate."""
    task = {"learning_rate": 1e-4, "momentum": 0.9, "nesterov": True, "local_steps": 5, "batch_size": 40}
    runs = [client(pipeline=text, **task).train(weights(), {}).updates[0] for text in ("", "GaussianNoise(std=10.0)")]
    noise = torch.cat([(runs[1][name] - runs[0][name]).flatten() for name in runs[0]])
    seen = ClientUpdate(
        TASK.plan.build_model(),
        runs[1],
        (1, 28, 28),
        (0.0,),
        (1.0,),
        40,
        40,
        5,
        1e-4,
        0.01,
        momentum=0.9,
        nesterov=True,
    )
    expected = gradient_noise(seen, 0.0, 10.0) * 1e-4 * 5 * seen.step_length
    assert noise.std().item() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("pipeline", ["DPSGD(noise_multiplier=4.0)", "DPSGD(noise_multiplier=4.0, accountant='prv')"])
def test_after_the_last_round_epsilon_is_reported_by_every_accountant(pipeline: str) -> None:
    ledger: Ledger = {}
    for at in (1, 2):
        result = client(pipeline=pipeline, local_steps=3, rounds=2, round=at).train(weights(), ledger)
        ledger, found = result.ledger, {n: v for n, v in result.metrics.items() if n.startswith("epsilon-by-")}
        if at == 1:
            assert not found
    steps = {"accountant": {"steps": [[2.0, 1 / 3, 6]]}}
    assert found == {f"epsilon-by-{name}": value for name, value in epsilon_by_accountant(steps, 1e-5).items()}
    assert result.metrics["epsilon"] == found["epsilon-by-prv" if "prv" in pipeline else "epsilon-by-rdp"]
    assert found["epsilon-by-prv"] < found["epsilon-by-rdp"]
