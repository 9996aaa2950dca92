"""Statistics that stand in for those that a client kept: what they equal, and that sent ones are always preferred."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attacks import InvertingGradients, Knowledge, MaskedInversion, NoiseModelInversion, OmittedLayerInversion
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.inversion_target import Target, Victim
from attacks.gradient.trial_gradients.batch_statistics import batch_norms, sent_statistics
from attacks.gradient.trial_gradients.matching import attackable
from attacks.gradient.trial_gradients.missing_statistics import (
    MOST_PROXIES,
    PROXY_BATCHES,
    kept_layers,
    proxy_images,
    proxy_statistics,
    running_statistics,
)
from attacks.observations import AttackError, ClientUpdate
from defenses import SiloBN, VisualMixer
from defenses.base import Batch
from defenses.pipeline import Pipeline
from strategies.audit.attack_card import attack_card
from strategies.audit.threat_card import KEPT_STATISTICS, ThreatCard
from tests.attacks.gradient.trial_gradients.test_averaged_statistics import close, trained, two_layers
from tests.attacks.gradient.trial_gradients.test_batch_statistics import bn_net, direct_statistics, sent
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, pictures

LAYERS = {"1", "4"}
QUICK = InvertingGradients(iterations=3)


def kept(seen: ClientUpdate, layers: set[str] | None = None) -> ClientUpdate:
    """The observation of a client that sends no running averages, of some layers or all."""
    gone = [name for name in seen.update if "running" in name and (layers is None or name.rpartition(".")[0] in layers)]
    return replace(seen, update={name: value for name, value in seen.update.items() if name not in gone})


def case(count: int = 3) -> ClientUpdate:
    """A step on some pictures, of a network whose running averages have moved."""
    model = two_layers().float()
    model(2 * torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(2)) + 0.5)
    return sent(model, pictures(count), classes(count))


def knowledge(count: int = 40, defenses: tuple[Any, ...] = (), seed: int = 8) -> Knowledge:
    auxiliary = Batch(pictures(count, seed=seed), F.one_hot(classes(count, seed=seed), CLASSES).float())
    return Knowledge(auxiliary, Pipeline(defenses), MEAN, STD, lambda *_: two_layers())


def standing_in(what: str, attack: Any = QUICK, **known: Any) -> Any:
    return replace(attack, missing_statistics=what).fit(knowledge(**known), generators(1)[0])


def target_of(attack: GradientInversion, seen: ClientUpdate) -> Target:
    return attack.prepare(0, seen, Victim.of(seen), generators(1)[0])


def test_running_averages_of_the_global_model_become_biased_as_in_a_batch() -> None:
    seen = case(3)
    found = running_statistics(seen, LAYERS)
    for name, positions in (("1", 36), ("4", 9)):
        layer, values = batch_norms(seen.model)[name], 3 * positions
        assert torch.equal(found[name][0], layer.running_mean)
        torch.testing.assert_close(found[name][1], layer.running_var * (values - 1) / values)
    assert list(running_statistics(seen, {"4"})) == ["4"]


def test_initial_averages_and_those_that_are_no_numbers_stand_for_nothing() -> None:
    seen = replace(case(), model=two_layers().float())
    assert running_statistics(seen, LAYERS) == {}
    batch_norms(seen.model)["4"].running_mean[0] = 0.1
    assert list(running_statistics(seen, LAYERS)) == ["4"]
    batch_norms(seen.model)["4"].running_var[0] = torch.nan
    assert running_statistics(seen, LAYERS) == {}


@pytest.mark.parametrize(("size", "count", "batches"), [(1, 5, 5), (3, 11, 3), (1, PROXY_BATCHES + 9, PROXY_BATCHES)])
def test_proxies_are_the_mean_over_whole_batches_of_the_clients_size(size: int, count: int, batches: int) -> None:
    seen, images = case(size), pictures(count, seed=4)
    found = proxy_statistics(seen, attackable(seen.model, True), images, LAYERS)
    each = [direct_statistics(seen.model, images[at * size : (at + 1) * size]) for at in range(batches)]
    for name in LAYERS:
        for at in (0, 1):
            expected = torch.stack([one[name][at] for one in each]).mean(0)
            torch.testing.assert_close(found[name][at], expected, atol=1e-4, rtol=1e-4)
    assert list(proxy_statistics(seen, attackable(seen.model, True), images, {"4"})) == ["4"]


def test_the_clients_own_batch_as_the_proxy_gives_what_it_would_have_sent() -> None:
    seen = case(3)
    found = proxy_statistics(seen, attackable(seen.model, True), pictures(3), LAYERS)
    assert close(found, sent_statistics(seen), 1e-4)


def test_auxiliary_images_that_do_not_fit_are_refused() -> None:
    seen = case(3)
    for images, message in (
        (pictures(2), "2 auxiliary images; .* at least 3"),
        (pictures(9, side=8), r"shape \(1, 8, 8\)"),
    ):
        with pytest.raises(AttackError, match=message):
            proxy_statistics(seen, attackable(seen.model, True), images, LAYERS)
    guess = standing_in("proxy", count=2)(kept(seen), generators(1)[0])
    assert "2 auxiliary images" in guess.failure


def test_a_client_keeps_layers_in_train_mode_whose_average_can_be_weighed() -> None:
    seen = case()
    assert kept_layers(seen, {"1"}) == ["4"]
    assert kept_layers(replace(seen, train_mode=False), set()) == []
    model = copy.deepcopy(seen.model)
    batch_norms(model)["1"].momentum = None
    assert kept_layers(replace(seen, model=model), set()) == ["1", "4"]
    assert kept_layers(replace(seen, model=model, local_steps=2), set()) == ["4"]


def test_none_changes_nothing_and_learns_nothing() -> None:
    assert GradientInversion().missing_statistics == "none"
    assert QUICK.fit(knowledge(), generators(1)[0]) is QUICK
    bare = kept(case())
    with_proxies = replace(QUICK, proxies=knowledge().auxiliary)
    without = replace(QUICK, batch_norm_prior=0.0)
    guesses = [attack(bare, generators(1)[0]) for attack in (QUICK, with_proxies, without)]
    assert torch.equal(guesses[0].images, guesses[1].images)
    assert torch.equal(guesses[0].images, guesses[2].images)
    assert guesses[0].diagnostics["batch_norm_layers"] == 0
    assert "batch_norm_stand_ins" not in guesses[0].diagnostics


@pytest.mark.parametrize("what", ["running", "proxy"])
def test_sent_statistics_are_preferred_in_every_layer(what: str) -> None:
    seen, attack = case(), standing_in(what)
    found, plain = (one(seen, generators(1)[0]) for one in (attack, QUICK))
    assert torch.equal(found.images, plain.images)
    assert (found.diagnostics["batch_norm_layers"], found.diagnostics["batch_norm_stand_ins"]) == (2, 0)
    target = target_of(attack, kept(seen, {"4"}))
    assert target.stand_ins == {"4"}
    assert close({"1": target.statistics["1"]}, {"1": sent_statistics(seen)["1"]})
    expected = {
        "running": lambda: running_statistics(seen, {"4"}),
        "proxy": lambda: proxy_statistics(seen, attackable(seen.model, True), attack.proxies.images, {"4"}),
    }[what]()
    assert close({"4": target.statistics["4"]}, expected)
    assert target.diagnostics["batch_norm_layers"] == 2
    assert target.diagnostics["batch_norm_stand_ins"] == 1


def test_nothing_stands_in_for_averages_that_arrived_and_cannot_be_solved() -> None:
    seen = case()
    model = copy.deepcopy(seen.model)
    batch_norms(model)["1"].momentum = None
    unsolved = replace(seen, model=model)
    with pytest.raises(AttackError, match="plain average"):
        sent_statistics(unsolved)
    assert target_of(standing_in("running"), unsolved).stand_ins == frozenset()
    assert target_of(standing_in("running"), kept(unsolved, {"4"})).stand_ins == {"4"}


@pytest.mark.parametrize("what", ["running", "proxy"])
def test_clients_that_keep_and_clients_that_send_are_attacked_together_as_alone(what: str) -> None:
    whole, attack = case(), standing_in(what)
    seen = [kept(whole), whole, kept(whole, {"1"})]
    together = attack.attack_many(seen, generators(3))
    for one, generator, guess in zip(seen, generators(3), together, strict=True):
        torch.testing.assert_close(guess.images, attack(one, generator).images, atol=1e-6, rtol=0)
    assert [guess.diagnostics["batch_norm_stand_ins"] for guess in together] == [2, 0, 1]
    assert not torch.equal(together[0].images, QUICK(seen[0], generators(1)[0]).images)
    assert not attack(replace(seen[0], train_mode=False), generators(1)[0]).diagnostics["batch_norm_stand_ins"]


@pytest.mark.parametrize("what", ["running", "proxy"])
@pytest.mark.parametrize("unrolled", [16, 0])
def test_they_are_matched_over_several_steps(what: str, unrolled: int) -> None:
    model = two_layers()
    model(2 * torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(2)).double())
    seen = kept(trained(model, pictures(4), 2, 3)[0])
    attack = replace(standing_in(what), max_unrolled_steps=unrolled)
    guess, plain = (one(seen, generators(1)[0]) for one in (attack, replace(QUICK, max_unrolled_steps=unrolled)))
    assert guess.failure == ""
    assert guess.diagnostics["unrolled"] == float(unrolled > 0)
    assert guess.diagnostics["batch_norm_stand_ins"] == guess.diagnostics["batch_norm_layers"] == 2
    assert not torch.equal(guess.images, plain.images)


def test_the_objective_adds_their_weighted_distance() -> None:
    """At the client's images, whose gradient matches: what is left is the distance to the stand-in alone."""
    seen, images = kept(case(3)), ((pictures(3) - MEAN[0]) / STD[0]).flatten()[None]
    attack = GradientInversion(total_variation=0.0, batch_norm_prior=2.0, labels="known", missing_statistics="running")

    def objective(one: GradientInversion) -> float:
        victim = Victim.of(seen)
        matching = one._objective([(one.prepare(0, seen, victim, generators(1)[0]), 0)], victim)
        return float(matching(images, torch.tensor([0]))[0])

    truth, terms = direct_statistics(seen.model, pictures(3)), []
    for name, (mean, variance) in running_statistics(seen, LAYERS).items():
        scale = variance + 1e-5
        terms.append(((truth[name][0] - mean) ** 2 / scale) + ((truth[name][1] - variance) / scale) ** 2)
    assert objective(attack) == pytest.approx(2.0 * float(torch.cat(terms).mean()), rel=1e-3)
    assert abs(objective(replace(attack, missing_statistics="none"))) < 1e-5


def test_no_layer_is_normalised_by_them() -> None:
    whole, attack = case(), replace(standing_in("proxy"), iterations=8, normalise_by="sent")
    guesses = attack.attack_many([whole, kept(whole), kept(whole, {"1"})], generators(3))
    assert [guess.diagnostics["normalised_by_sent"] for guess in guesses] == [2, 0, 1]


def test_unfit_settings_and_a_missing_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"missing_statistics.*'inferred'.*none \| running \| proxy"):
        InvertingGradients(missing_statistics="inferred")
    with pytest.raises(ValueError, match="none, unless batch_norm_prior is above 0"):
        GradientInversion(missing_statistics="running")
    with pytest.raises(AttackError, match="needs auxiliary images: call fit first"):
        replace(QUICK, missing_statistics="proxy")(kept(case()), generators(1)[0])


def test_only_proxies_need_auxiliary_data() -> None:
    for what, needs in (("none", False), ("running", False), ("proxy", True)):
        attack = replace(QUICK, missing_statistics=what)
        assert attack.needs_auxiliary is needs
        assert attack.threat_class == ("D" if needs else "C")
        assert attack.fit(knowledge(), generators(1)[0]) == attack


@pytest.mark.parametrize("cls", [MaskedInversion, NoiseModelInversion, OmittedLayerInversion])
def test_attacks_that_learn_something_else_keep_them_too(cls: Any) -> None:
    attack = cls(batch_norm_prior=1.0, missing_statistics="proxy").fit(knowledge(), generators(1)[0])
    assert len(attack.proxies) == 40


def test_proxies_are_drawn_at_random_as_the_clients_defences_leave_them() -> None:
    images = knowledge().auxiliary.images
    plain, again, mixed = (
        proxy_images(knowledge(defenses=some), generators(1)[0]).images for some in ((), (), (VisualMixer(),))
    )
    assert torch.equal(plain, again)
    assert not torch.equal(plain, images)
    assert torch.equal(plain.flatten(1).sum(1).sort().values, images.flatten(1).sum(1).sort().values)
    assert not torch.equal(plain, mixed)
    torch.testing.assert_close(plain.mean((1, 2, 3)), mixed.mean((1, 2, 3)))  # Pixels were moved, not changed.
    assert len(proxy_images(knowledge(MOST_PROXIES + 1), generators(1)[0])) == MOST_PROXIES


def test_the_threat_card_says_what_stands_in() -> None:
    kept_card = ThreatCard(local_steps=1, images=2, more={"mode": "train", "batch_norm_statistics": KEPT_STATISTICS})

    def said(attack: Any, card: ThreatCard = kept_card) -> str:
        job: Any = SimpleNamespace(card=card, task=SimpleNamespace(plan=SimpleNamespace(auxiliary_data="held-out")))
        return str(attack_card(job, attack).more["batch_norm_statistics"])

    running, proxy = (replace(QUICK, missing_statistics=what) for what in ("running", "proxy"))
    assert said(QUICK) == KEPT_STATISTICS
    assert said(running).startswith(f"{KEPT_STATISTICS}; the attack matches the running averages of the global model")
    assert said(proxy) == f"{KEPT_STATISTICS}; the attack matches the statistics of auxiliary batches instead"
    whole = kept_card.but(batch_norm_statistics="sent as they are")
    assert said(proxy, whole) == said(QUICK, whole) == "sent as they are; matched by the attack"
    assert said(proxy, kept_card.but(local_steps=99)) == KEPT_STATISTICS
    assert said(proxy, kept_card.but(mode="eval")) == KEPT_STATISTICS


def test_it_attacks_a_client_under_silobn() -> None:
    seen = sent(bn_net(), pictures(2), classes(2))
    still = SiloBN().protect_update(seen.update, generators(1)[0])
    layers = len(batch_norms(seen.model))
    for what in ("running", "proxy"):
        guess = standing_in(what)(replace(seen, update=still), generators(1)[0])
        assert guess.failure == ""
        assert guess.diagnostics["batch_norm_stand_ins"] == guess.diagnostics["batch_norm_layers"] == layers
