"""Settings of federated learning."""

from __future__ import annotations

from dataclasses import dataclass

from simulations.settings.attributes import attacks_setting
from simulations.settings.fields import SHARE, one_of, setting
from simulations.settings.whole_models import WholeModelSettings


@dataclass(frozen=True)
class FederatedSettings(WholeModelSettings):
    """Their names, defaults, meanings and ranges."""

    fraction_train: float = setting(1.0, "share of the clients that train in a round", **SHARE)
    probe_attacks: str = setting("InvertingGradients(); LabelInference()", "attacks on one-step probes, separated by ;")
    update_attacks: str = setting(
        "LabelInference(); LossThreshold()", "attacks on real training updates, separated by ;"
    )
    attribute_attacks: str = attacks_setting()
    active_attacks: str = setting(
        "",
        "attacks that send clients a manipulated model in place of the agreed one, separated by ;. They need an active server: the "
        "report shows them apart, and no headline counts them",
    )
    model_check: bool = setting(
        False,
        "simulated clients refuse a model that is not the agreed one, as far as they can tell; a deployed node decides by its "
        "own key",
    )
    aggregate_clients: str = setting(
        "",
        "sizes of the groups of clients whose one-step probes are summed before they are attacked, as secure aggregation leaves "
        "them, such as 1,2,4; empty: none",
    )
    aggregate_attacks: str = setting("", "attacks on these sums, separated by ;")
    probe_mode: str = setting(
        "train",
        "mode of the model in probes; in eval mode BatchNorm uses its running statistics and dropout is off, as most "
        "papers on gradient inversion have it, though no training step sends such a gradient",
        **one_of("train", "eval"),
    )


SETTINGS = FederatedSettings
