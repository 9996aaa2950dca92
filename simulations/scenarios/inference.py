"""Edge-cloud inference: clients hold the lower half of a trained classifier and query a cloud with the upper half."""

import functools
import math
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from attacks.queries.training import MIN_EXAMPLES
from attacks.sender import Sender
from clients.data.card import DataCard
from clients.data.datasets import has_sensitive_attribute
from clients.inference.plan import InferencePlan
from clients.models.cuts import CUTS
from clients.models.library import ModelError
from clients.models.pretrained import NORMALISATIONS, PACKAGED, normalisation
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES, Plan
from defenses.base import Defense, DefenseError, InputDefense, SmashedDefense
from defenses.fitting import FittedDefense
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import NO_DEFENSE, WholeModelExperiment
from simulations.experiment.scenario import LARGEST_MESSAGE, KnownClients, Rounds
from simulations.settings.errors import ConfigError, require_known
from simulations.settings.scenarios import InferenceSettings
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import ATTRIBUTE_SETTING
from strategies.inference.observations import ATTRIBUTE, KINDS
from strategies.inference.offline_adversary import OfflineAdversaries
from strategies.inference.public_model import PublicTraining, read_weights
from strategies.inference.server import InferenceServer

# Every run has an auditor of its own, and all pipelines of a run share one training.
_SHARED: WeakKeyDictionary[Auditor, tuple[PublicTraining, OfflineAdversaries]] = WeakKeyDictionary()


class InferenceExperiment(InferenceSettings, WholeModelExperiment):
    """The server trains a model on its own images; clients send features of their test images; the server sees these."""

    name = "inference"
    about = "clients hold the lower half of a trained classifier and send features to a cloud that answers"
    kinds = KINDS
    label_holders = ("unknown",)

    def normalised(self, card: DataCard) -> DataCard:
        """The card with mean and std of the model's images; ``ModelError`` when the weights expect other channels."""
        name = self.normalisation or self.weights
        if name not in NORMALISATIONS:
            return card
        mean, std = normalisation(name, card.input_shape[0])
        return replace(card, mean=mean, std=std)

    def plan(self, pipeline: Pipeline = NO_DEFENSE, card: DataCard | None = None) -> InferencePlan:
        """Settings that the run fixes for the clients of a pipeline."""
        return InferencePlan.narrow(super().plan(pipeline, card))

    def check(self) -> None:
        """Refuse models without cuts, defences of data that are never sent, and views of training, as clients train nothing."""
        self._check_model()
        self.check_training_by_server("clients train nothing")
        if not self.auxiliary_fraction and self.partition != "node":
            raise self.refusal("auxiliary-fraction", "above 0, as the server trains the model on these images")
        on = [kind for kind in KINDS if self.attacks[kind]]
        if self.attacked_rounds and not self.attacks_final and on:
            raise ConfigError(
                f"attack-rounds is {self.attack_rounds!r}, and queries are attacked once all are answered: add final, or set "
                f"{' and '.join(kind.setting for kind in on)} = ''"
            )
        if self.attacks[ATTRIBUTE]:
            self._require_attribute(f"{ATTRIBUTE_SETTING} is {self.attribute_attacks!r}", f"{ATTRIBUTE_SETTING} = ''")
        for pipeline in self.pipelines:
            if pipeline.needs_adversary:
                why = f"defenses: {pipeline} learns from an adversary of a sensitive attribute"
                self._require_attribute(why, "delta='max', which needs none")

    def _require_attribute(self, what: str, instead: str) -> None:
        """Raise ``ConfigError`` for data without a sensitive attribute: ``what`` needs one, ``instead`` is the remedy."""
        if not has_sensitive_attribute(self.dataset):
            raise ConfigError(
                f"{what}, and dataset = {self.dataset!r} has no sensitive attribute: take garment-digit, photo-face, or two "
                f"attributes of CelebA such as celeba:Wearing_Lipstick,Wearing_Hat; or set {instead}"
            )

    def _check_model(self) -> None:
        require_known("model", self.model, dict.fromkeys(CUTS), also="")
        self.check_whole_model()
        words = [word.strip() for word in self.cuts.split(",")] if self.cuts else []
        allowed = CUTS[self.model]
        if set(words) - set(allowed) or len(set(words)) < len(words):
            known = f"{', '.join(allowed)}, each once, separated by commas, and empty for the first"
            raise self.refusal("cuts", known, by="model")
        if packaged := PACKAGED.get(self.weights):
            if self.model != packaged.model:
                raise ConfigError(
                    f"weights is {self.weights!r}; allowed with model = {packaged.model!r} only, not {self.model!r}"
                )
        elif self.weights and not Path(self.weights).is_absolute():
            raise ConfigError(
                f"weights is {self.weights!r}; expected {' or '.join(map(repr, PACKAGED))}, or an absolute path, because the "
                "server's folder is not yours"
            )

    def unsuited(self, pipeline: Pipeline, defense: Defense) -> str:
        """Defences of what clients train, of images that are trained on, and of tokens."""
        here = f"with scenario = {self.scenario!r} clients"
        if isinstance(defense, InputDefense):
            kept = f"protects images that are trained on, and {here} send test images, which it leaves as they are"
            return "" if defense.at_inference else kept
        if not isinstance(defense, SmashedDefense):
            only = "allowed: defences of test images, and of the feature maps that are sent"
            return f"protects what a client trains, and {here} train nothing; {only}"
        return "" if defense.takes_maps else f"protects tokens, and {here} send feature maps (B, C, H, W)"

    def check_data(self, pipeline: Pipeline, card: DataCard) -> None:
        """Build both halves; features, messages, and the server's own images must fit them."""
        try:
            plan = self.plan(pipeline, self.normalised(card))
            # Weights are the same for all pipelines, and no defence is always among these.
            if self.weights and not pipeline.defenses:
                self._check_weights(plan)
        except ModelError as error:
            raise ConfigError(str(error)) from error
        for cut in plan.cut_names:
            try:
                plain = _feature_shape(replace(plan, pipeline=""), cut)
                latent, learned = pipeline.latent_shape(*plain), pipeline.learned_numbers(*plain)
            except ModelError as error:
                raise ConfigError(str(error)) from error
            except DefenseError as error:
                raise ConfigError(f"defenses: {error}") from error
            of = f" of {' x '.join(map(str, latent))} features"
            self.check_message(self.batches_per_message, math.prod(latent), of)
            if FLOAT_BYTES * learned > LARGEST_MESSAGE:
                raise ConfigError(
                    f"defenses: {pipeline} learns {FLOAT_BYTES * learned / 2**30:.1f} GiB for features of "
                    f"{' x '.join(map(str, plain))} at {cut}, which every client is sent, and a message may hold 1 GiB; lower what "
                    "it learns, or cut the model elsewhere"
                )
        self._check_own_images(pipeline, plan)

    def _check_own_images(self, pipeline: Pipeline, plan: InferencePlan) -> None:
        """Refuses a server with too few images for what learns from them."""
        own = len(Auxiliary(plan).labels())
        if not own:
            raise ConfigError(
                f"auxiliary-fraction is {self.auxiliary_fraction:g}, which leaves the server no image to train on; raise it"
            )
        held = f"the server learns from {own} images"
        more = "raise auxiliary-fraction or auxiliary-limit, or change defenses"
        if pipeline.needs_adversary and own < MIN_EXAMPLES:
            raise ConfigError(
                f"defenses: {pipeline} needs an adversary, of {MIN_EXAMPLES} images or more; {held}: {more}"
            )
        for defense in pipeline.smashed_defenses:
            if isinstance(defense, FittedDefense) and own < defense.least_images:
                raise ConfigError(f"defenses: {defense} needs {defense.least_images} images or more; {held}: {more}")
        if own < MIN_EXAMPLES and self.attacks[ATTRIBUTE]:
            raise ConfigError(
                f"attribute-attacks is {self.attribute_attacks!r}, and an adversary learns from {MIN_EXAMPLES} images or "
                f"more; the server has {own}: raise auxiliary-fraction or auxiliary-limit, or set attribute-attacks = ''"
            )

    def _check_weights(self, plan: InferencePlan) -> None:
        if read_weights(plan, self.weights).is_complete and self.rounds != 1:
            raise ConfigError(
                f"rounds is {self.rounds}; allowed with weights whose last layer has as many classes as the data: 1, as "
                "nothing is trained"
            )

    def check_clients(self, clients: KnownClients) -> None:
        """Refuse also more features at once than memory holds."""
        super().check_clients(clients)
        if not self.attacks[ATTRIBUTE]:
            return
        # All features whose attribute is guessed are held at once, as they travelled and as the server half is given them.
        plan = self.plan(card=clients.card)
        values = max(math.prod(_feature_shape(plan, cut)) for cut in plan.cut_names)
        queries = sum(test for _, test in clients.sizes.values())
        size = 2 * FLOAT_BYTES * queries * values
        if size > self.image_memory * 2**30:
            raise ConfigError(
                f"image-memory is {self.image_memory:g}, and {ATTRIBUTE_SETTING} read features of {queries} queries, "
                f"{size / 2**30:.2g} GiB at once: raise it, or lower test-limit"
            )

    def check_share(self, train: int, test: int) -> None:
        """Refuse to attack more batches of queries than there are, or more images than a batch holds."""
        self.check_first_of_batches(test, "asks", test=True)

    @property
    def phases_behind(self) -> int:
        """One phase for each cut, attacked or not."""
        return len(self.plan().cut_names)

    def training(self, plan: Plan, auditor: Auditor, clients: KnownClients, label: str) -> Rounds:
        """Training by the server, and queries of the clients."""
        self.leave_cores_to_attacks()
        # Every task holds the normalisation of the model's images, so that clients and attacks normalise as the server does.
        mine = replace(InferencePlan.narrow(plan), card=self.normalised(clients.card))
        if auditor not in _SHARED:
            adversaries = OfflineAdversaries(self.offline_adversary, self.offline_iterations)
            _SHARED[auditor] = self._training(mine), adversaries
        training, adversaries = _SHARED[auditor]
        return InferenceServer(
            plan=mine,
            auditor=auditor,
            training=training,
            adversaries=adversaries,
            sizes={partition: test for partition, (_, test) in clients.sizes.items()},
            attacks={kind: self.attacks_on(plan.defenses, kind) for kind in KINDS},
            attacked=self.attacks_final,
            min_usable=self.min_usable,
            batches_per_message=self.batches_per_message,
            label=label,
        )

    def _training(self, plan: InferencePlan) -> PublicTraining:
        if not self.weights:
            return PublicTraining(plan)
        loaded = read_weights(replace(plan, pipeline=""), self.weights)
        return PublicTraining(plan, loaded.tensors, trains=not loaded.is_complete)


@functools.lru_cache(maxsize=16)
def _feature_shape(plan: InferencePlan, cut: str) -> tuple[int, ...]:
    """(C', H', W') of an image's unprotected features; kept, because a large network takes seconds to build."""
    model, card = plan.build_cut(cut), plan.data_card()
    blank = torch.zeros(1, *card.input_shape, device=next(model.whole.parameters()).device)
    with torch.no_grad():
        features = Sender(model.client, Pipeline(), card.mean, card.std).features(blank)
    return tuple(features.shape[1:])


SCENARIO = InferenceExperiment
