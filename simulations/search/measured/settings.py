"""The settings of a measured search."""

from __future__ import annotations

import itertools
import math
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from attacks.refinement.policy_inversion import PolicyInversion
from attacks.refinement.restoration import HOLDOUT
from attacks.spec import parse_attacks, stages_of
from clients.data.datasets import DataError, has_sensitive_attribute, is_multi_label, is_table, load_dataset
from defenses.images.ats import ATS, parse_policies
from simulations.experiment.experiment import Experiment
from simulations.experiment.known_names import require_dataset, require_model
from simulations.search.settings import Search
from simulations.search.space import LONGEST
from simulations.settings.errors import ConfigError, naming
from simulations.settings.fields import (
    IMAGE_SIDE,
    SHARE,
    KeyedSettings,
    above,
    at_least,
    between,
    check_values,
    keys_of,
    one_of,
    setting,
)
from strategies.federated.observations import PROBE

PAPERS = "19-15-45+2-43-21; 3-1-7+43-18-18"
"""Hybrids that the authors searched for Fashion-MNIST and for CIFAR-100, both with ResNet20 (Table 1 of ATS)."""
CHANGEABLE = ("workers",)
"""Settings with other values of which a search may be resumed. They change no judgement, but ``workers`` is not without effect:
halving is asynchronous, so that with several processes their speed decides which hybrids go on to the next rung."""
EXAMPLE = "0"
"""A hybrid with which the settings of runs are checked: attacks on policies need one."""
SELECTION = 3
"""Least number of scored policies for each policy of the hybrids that the score is to choose."""


class Rung(NamedTuple):
    """What one step of successive halving spends on a hybrid.

    Attributes:
        rounds: Rounds of federated training.
        attack_rounds: Models that are attacked, as the setting of ``fedveil run``.
        images: Attacked images of each client.
        restorer: Whether ``LearnedRestorer``, the slower of the two adaptive attacks, is trained as well.
    """

    rounds: int
    attack_rounds: str
    images: int
    restorer: bool


@dataclass(frozen=True)
class Measured(KeyedSettings):
    """Settings of a measured search. Keys of files and of the command line have hyphens.

    Raises:
        ConfigError: Naming the key, what came and what is allowed.
    """

    listed: ClassVar[str] = "measured-search"

    dataset: str = setting("fashion-mnist", "data set, see `fedveil list datasets`")
    data_dir: str = setting("", "directory of its files")
    image_size: int = setting(0, "side to resize images to; 0: as they are", **IMAGE_SIDE)
    train_limit: int = setting(3000, "training images of the search, and of its confirmation; 0: all", **at_least(0))
    test_limit: int = setting(4000, "images of each accuracy; 0: all", **at_least(0))
    model: str = setting("mlp", "model, see `fedveil list models`")
    width: int = setting(0, "of models that have one; 0 for the default", **at_least(0))
    norm: str = setting("group", "normalisation layers", **one_of("batch", "group"))
    num_clients: int = setting(4, "clients of the federated training", **between(1, 1000))
    rounds: int = setting(12, "rounds of a whole training; lower rungs have fewer", **between(1, 10_000))
    local_epochs: int = setting(2, "passes of each client in a round", **between(1, 1000))
    batch_size: int = setting(32, "images of a step", **at_least(1))
    learning_rate: float = setting(0.1, "of SGD", **above(0, 1e6))
    seed: int = setting(0, "of the search: hybrids, models, draws and attacked images", **between(0, 2**31 - 1))
    candidates: int = setting(20, "hybrids that are judged", **between(1, 100_000))
    by_score: float = setting(
        0.5, "share of the candidates that S_pri of the authors' code chooses; the others are random", "0 to 1",
        lambda value: 0 <= value <= 1,
    )  # fmt: skip
    scored: int = setting(
        60, "random policies that S_pri scores for these; more where that is fewer than three for each policy of theirs",
        **between(2, 100_000),
    )  # fmt: skip
    policies: int = setting(2, "policies of a hybrid; they share no transform", **between(1, 16))
    longest: int = setting(LONGEST, "most transforms of a policy", **between(1, LONGEST))
    papers: str = setting(PAPERS, "hybrids that are judged in full beside the candidates; separated by ;")
    rungs: int = setting(3, "steps of successive halving, the last one the whole training", **between(1, 8))
    reduction: int = setting(
        3,
        "about one in so many hybrids goes on to the next rung, which has so many times the rounds; more of the first ones do",
        **between(2, 16),
    )
    attack: str = setting(
        "Spear()", "reconstruction of what entered the model; adaptive attacks undo policies behind it"
    )
    images_per_client: int = setting(
        8, "attacked images of each client on the last rung; half on the first", **between(1, 1000)
    )
    attack_rounds: str = setting(
        "first",
        "attacked models of the last rung, as the setting of `fedveil run`: first, final or both; an exact attack on each recovers "
        "the same",
    )
    tolerated: float = setting(0.03, "share of accuracy that a recommended hybrid may lose against no defence", **SHARE)
    exchange: float = setting(
        0.1, "share of accuracy that a choice counts as much as attacks that recover all images", **SHARE
    )  # fmt: skip
    confirmed: int = setting(1, "hybrids of the front that are judged on held-out images", **between(0, 100))
    controls: int = setting(
        19, "random hybrids that are judged beside them; a recommendation needs at least 20 x confirmed - 1",
        **between(2, 1000),
    )  # fmt: skip
    seeds: int = setting(3, "seeds of that judgement, none of them the search's", **between(2, 100))
    curtail: bool = setting(
        True,
        "judge no more random hybrids once no recommendation is possible: the same recommendation, in less time",
    )
    workers: int = setting(
        0,
        "processes that judge; 0: one for each processor. With several, their speed decides which hybrids go on",
        **between(0, 1024),
    )

    def __post_init__(self) -> None:
        check_values(self)
        require_dataset("dataset", self.dataset)
        if is_table(self.dataset) or is_multi_label(self.dataset) or has_sensitive_attribute(self.dataset):
            raise ConfigError(f"dataset is {self.dataset!r}; allowed: data sets of images with one class for an image")
        require_model(self.model)
        _ = self.references
        rounds = [self.rung(number).rounds for number in range(self.rungs)]
        if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
            raise ConfigError(
                f"rungs is {self.rungs}, with {', '.join(map(str, rounds))} rounds; allowed: more rounds on each rung than on "
                f"the one before; lower rungs or reduction = {self.reduction}, or raise rounds = {self.rounds}"
            )

    def check(self) -> None:
        """Raise ``ConfigError`` for data, model, attack and rounds that a run of any rung refuses, and for too few images."""
        if self.confirmed > self.candidates:
            raise ConfigError(f"confirmed is {self.confirmed}; allowed: 0 to candidates = {self.candidates}")
        try:
            data = load_dataset(self.dataset, data_dir=self.data_dir, image_size=self.image_size)
        except DataError as error:
            raise ConfigError(str(error)) from error
        least = self.num_clients * self.images_per_client
        if (held := int(0.4 * len(data.train.labels))) < least:
            raise ConfigError(
                f"images-per-client is {self.images_per_client}, which takes {least} training images, and each part of "
                f"{self.dataset} has {held}; lower it, or num-clients"
            )
        # Without a hybrid first: errors about the model or the data then name no policies.
        runs = [
            self.experiment(self.dataset, hybrid, self.rung(number), self.seed, Path(), self.data_dir)
            for hybrid in ("", EXAMPLE)
            for number in reversed(range(self.rungs))
        ]
        experiment = runs[0]
        if not experiment.attacks[PROBE]:
            raise ConfigError(
                f"attack is {self.attack!r}; allowed: reconstructions, see `fedveil list attacks`, separated by ;"
            )
        if not experiment.attacked_rounds:
            raise ConfigError(
                f"attack-rounds is {self.attack_rounds!r}; allowed: first, last, final, all and numbers from 1 to rounds = "
                f"{self.rounds}, at least one"
            )
        self._require_images(least, held, experiment.auxiliary_fraction)

    def _require_images(self, attacked: int, held: int, auxiliary: float) -> None:
        """Raise ``ConfigError`` unless clients hold the attacked images, and the server enough to train ``LearnedRestorer``."""
        fewest = max(math.ceil(attacked / (1 - auxiliary) - 1e-9), math.ceil(2 * HOLDOUT / auxiliary - 1e-9))
        why = f"{attacked} images are attacked, and the server keeps {auxiliary:g} of all for its attacks, at least {2 * HOLDOUT}"
        if 0 < self.train_limit < fewest:
            raise ConfigError(f"train-limit is {self.train_limit}; allowed: 0 for all, or at least {fewest}: {why}")
        if held < fewest:
            raise ConfigError(
                f"dataset is {self.dataset!r}, each part of which has {held} training images; {fewest} are needed: {why}"
            )

    def experiment(
        self, dataset: str, hybrid: str, rung: Rung, seed: int, folder: Path, data_dir: str = ""
    ) -> Experiment:
        """The run that judges a hybrid; its last pipeline is the hybrid's.

        Args:
            dataset: Value of the run's setting: a part of the data (``pools.write_pools``).
            hybrid: Policies such as ``3-1-7+43-18-18``; "" for no defence.
            rung: What to spend.
            seed: Of models, draws, partition and attacked images.
            folder: For the run.
            data_dir: Directory of the data set's files, where it has one.
        """
        attacks = with_inversion(self.attack) if hybrid and not rung.restorer else self.attack
        return Experiment.of(
            dataset=dataset, data_dir=data_dir, model=self.model, width=self.width, norm=self.norm, num_clients=self.num_clients,
            rounds=rung.rounds, local_epochs=self.local_epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            seed=seed, defenses=repr(ATS(policies=hybrid, channels=0)) if hybrid else "", attack_rounds=rung.attack_rounds,
            probe_attacks=attacks, update_attacks="", adaptive=rung.restorer, probe_mode="eval", probe_images=1,
            probe_targets=rung.images, attack_workers=0, share_images=False, output_dir=str(folder.resolve()),
        )  # fmt: skip

    def pools(self) -> dict[str, Any]:
        """Arguments of ``pools.parts_of``."""
        return {
            "dataset": self.dataset, "data_dir": self.data_dir, "image_size": self.image_size, "train_limit": self.train_limit,
            "test_limit": self.test_limit, "seed": self.seed,
        }  # fmt: skip

    def channels(self) -> int:
        """Channels of the images."""
        data = load_dataset(self.dataset, data_dir=self.data_dir, image_size=self.image_size)
        return data.input_shape[0]

    @property
    def by_score_wanted(self) -> int:
        """Candidates that S_pri is to choose."""
        return round(self.by_score * self.candidates)

    @property
    def to_score(self) -> int:
        """Random policies that S_pri scores: of fewer, nearly all would be in a hybrid, and the score would choose nothing."""
        return max(self.scored, SELECTION * self.policies * self.by_score_wanted)

    @property
    def references(self) -> tuple[str, ...]:
        """Texts of the papers' hybrids; ``ConfigError`` where one is none."""
        texts = tuple(text.strip() for text in self.papers.split(";") if text.strip())
        with naming("papers"):
            for text in texts:
                parse_policies(text)
        return texts

    def rung(self, number: int) -> Rung:
        """Budget of a rung, from 0 to ``rungs`` - 1; a model before training is attacked on all, a trained one on the last."""
        last = number == self.rungs - 1
        rounds = max(1, round(self.rounds / self.reduction ** (self.rungs - 1 - number)))
        images = self.images_per_client if last or number else max(1, self.images_per_client // 2)
        return Rung(rounds, self.attack_rounds if last else "first", images, restorer=last)

    def scoring(self, dataset: str) -> Search:
        """Settings by which S_pri of single policies is computed on a data set: that of the search."""
        return Search(
            dataset=dataset, train_limit=0, model=self.model, width=self.width, norm=self.norm, seed=self.seed,
            candidates=self.scored, longest=self.longest, images=16, path_steps=10, accuracy_batches=1,
            learning_rate=self.learning_rate, workers=1,
        )  # fmt: skip


def with_inversion(attacks: str) -> str:
    """A list of attacks, and behind it each of them with ``PolicyInversion``, unless it has that stage or stands there with it."""
    with naming("attack"):
        known = parse_attacks(attacks)
        plain = [one for one in known if not any(isinstance(stage, PolicyInversion) for stage in stages_of(one))]
        added = parse_attacks("; ".join(f"{one!r} | PolicyInversion()" for one in plain)) if plain else []
    return "; ".join(dict.fromkeys(map(repr, [*known, *added])))


def keys() -> dict[str, Field[Any]]:
    """Key -> field of ``Measured``."""
    return keys_of(Measured)
