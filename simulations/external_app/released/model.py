"""A final model, the attacks on it and the records under test: all read and checked before any attack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attacks.base import AnyAttack
from attacks.local_model import shared_tensors
from attacks.metrics.metric import LEAST_IMAGES
from attacks.spec import ATTACKS
from clients.data.card import DataCard
from defenses.tensors import Tensors
from simulations.external_app.recorded.attack_file import pipeline_of
from simulations.external_app.recorded.missing import PREDICTIONS
from simulations.external_app.recorded.settings import Request
from simulations.external_app.recorded.update_files import few, model_tensors, read_file
from simulations.external_app.released.records import Records, ReleasedPlan, read_predictions
from simulations.settings.common import CommonSettings
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError, naming
from strategies.outsourced.observations import MODEL

SCENARIO = "released"
HALF = 0.5
"""Share of the non-members that train shadow models, and are not tested."""


@dataclass(frozen=True)
class ReleasedModel:
    """What attacks on a final model need, and the records under test, which no attack sees."""

    request: Request
    plan: ReleasedPlan
    weights: Tensors
    attacks: Sequence[AnyAttack]
    records: Records


def prepare(request: Request) -> ReleasedModel:
    """Read and check everything. ``ConfigError`` names the option or setting, what came and what is allowed."""
    attacks, path = _attacks_of(request), request.paths.get("--weights")
    # A shadow model trains on as many of the records that are set aside as it leaves out.
    wanted = [2 * getattr(attack, "num_members", 0) for attack in attacks if attack.needs_auxiliary]
    aside = max(LEAST_IMAGES, *wanted) if wanted else 0
    plan = _plan_of(request, HALF if aside else 0.0)
    with naming(f"model {plan.model}"):
        model = plan.build_model()
    weights = own = shared_tensors(model)
    if path:
        weights = model_tensors(f"--weights: {path}", read_file("--weights", path), model)
        if lacking := [name for name in own if name not in weights]:
            raise ConfigError(f"--weights: {path} lacks {few(lacking)}, which the model in use needs")
        _require_pictures(plan, max(LEAST_IMAGES, int(aside / HALF)))
    return ReleasedModel(request, plan, weights, attacks, Records(plan))


def _attacks_of(request: Request) -> list[AnyAttack]:
    """Attacks on membership, of "auto" every one that applies; of predictions none that trains models."""
    text, able = request.settings.update_attacks, PREDICTIONS not in request.paths

    def fits(attack: AnyAttack) -> bool:
        return attack.profile.guesses == "membership" and MODEL.suits(attack) and (able or not attack.needs_auxiliary)

    usual = sorted(filter(fits, (cls() for cls in ATTACKS.values())), key=lambda attack: attack.needs_auxiliary)
    with naming("update-attacks"):
        attacks = usual if text == AUTO else MODEL.parse(text)
    if not attacks or not all(map(fits, attacks)):
        allowed = ", ".join([AUTO, *(type(attack).__name__ for attack in usual)])
        raise ConfigError(f"update-attacks is {text!r}; allowed with {', '.join(request.paths)}: {allowed}")
    return attacks


def _plan_of(request: Request, fraction: float) -> ReleasedPlan:
    """The plan, by which shadow models train as the settings say, else as clients of ``fedveil run`` do by default."""
    settings, paths = request.settings, {option: str(path.resolve()) for option, path in request.paths.items()}
    known: dict[str, Any] = {
        "scenario": SCENARIO, "dataset": "", "pipeline": str(pipeline_of(settings)), "seed": settings.seed, "rounds": 1,
        "auxiliary_fraction": fraction, "image_memory": 1e6,  # GiB: all pictures are in memory before
    }  # fmt: skip
    if PREDICTIONS in paths:
        with naming(PREDICTIONS):
            classes = read_predictions(paths[PREDICTIONS])[0].num_classes
        known |= {"model": "predictions", "data_dir": paths[PREDICTIONS]}
        return ReleasedPlan.known(**known, card=DataCard(classes, (1, 1, 1), (0.0,), (1.0,)))
    usual = {name: spec.default for name, spec in CommonSettings.model_fields.items()}
    return ReleasedPlan.known(
        **known, model=settings.model, width=settings.width, norm=settings.norm, members=paths["--members"],
        data_dir=paths["--nonmembers"], learning_rate=settings.learning_rate or usual["learning_rate"],
        batch_size=settings.batch_size or usual["batch_size"], nesterov=settings.nesterov, weight_decay=settings.weight_decay,
        momentum=settings.momentum if "momentum" in settings.model_fields_set else usual["momentum"],
        local_epochs=settings.local_epochs or usual["rounds"] * usual["local_epochs"],
        card=DataCard(settings.num_classes, settings.shape, *settings.statistics),
    )  # fmt: skip


def _require_pictures(plan: ReleasedPlan, nonmembers: int) -> None:
    """Raise ``ConfigError`` for pictures that do not fit the model, or too few of them."""
    data, card = plan.load_data(), plan.data_card()
    if data.num_classes != card.num_classes:
        came = f"{data.num_classes} folders of classes, {few(data.class_names)}; an empty one counts"
        raise ConfigError(f"--members: there are {came}; allowed: num-classes, {card.num_classes}")
    for option, part, least in (("--members", data.test, LEAST_IMAGES), ("--nonmembers", data.train, nonmembers)):
        if (shape := tuple(part.images.shape[1:])) != card.input_shape:
            raise ConfigError(f"{option}: pictures are {shape}; allowed: input-shape, {card.input_shape}")
        if len(part) < least:
            raise ConfigError(f"{option}: there are {len(part)} different pictures; needed: {least} or more")
