"""Settings of federated learning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar

from clients.wire.limits import Canaries, Limit, ProbeMode
from clients.wire.schema import setting
from clients.wire.texts import shown
from simulations.settings.common import attribute_attacks
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError
from simulations.settings.whole_models import WholeModelSettings

SIZE = r"0*[1-9][0-9]{0,8}"
"""Pattern of a number of clients, of at most 9 digits: Python refuses to parse numbers of thousands of digits."""


class FederatedSettings(WholeModelSettings):
    """Names, defaults, meanings and ranges of the settings of federated learning."""

    # FedAvg's 2NN, and rounds so short that an exact attack solves whole updates of the first one.
    usual: ClassVar[Mapping[str, Any]] = {
        "dataset": "mnist-5k",
        "model": "mlp",
        "rounds": 30,
        "local-steps": 4,
        "batch-size": 4,
        "learning-rate": 0.1,
        "momentum": 0.5,
    }

    max_update_norm: Annotated[float, Limit(0, 1e9)] = setting(
        0.0,
        "largest norm of a client's update; the server refuses a larger one. 0: 30 times the norm of the other clients' updates, "
        "and at least 3 times that of the weights",
    )
    probe_attacks: str = setting(
        AUTO,
        "attacks on one-step probes, separated by ;; auto: every attack that applies to network and update, exact ones first",
    )
    update_attacks: str = setting(AUTO, "attacks on real training updates, separated by ;; auto: as for probes")
    attribute_attacks: str = attribute_attacks()
    active_attacks: str = setting(
        "",
        "attacks that send clients a manipulated model in place of the agreed model, separated by ;. They need an active server; "
        "the report shows them separately and leaves them out of its summary",
    )
    dp_canaries: Canaries = setting(
        0,
        "canaries among each client's training examples under DP-SGD: examples whose gradients an auditor chooses. Under ClientDP "
        "and FlowerLocalDP: clients whose updates an auditor chooses. From all updates the run bounds epsilon from below. Canaries "
        "cost accuracy; 0: none",
    )
    model_check: bool = setting(
        False,
        "simulated clients check for signs of a manipulated model and refuse it; a deployed node decides by its own key",
    )
    aggregate_clients: str = setting(
        "",
        "group sizes for attacks on sums of clients' one-step probes, as under secure aggregation, such as 1,2,4; empty: no sums",
    )
    aggregate_attacks: str = setting("", "attacks on these sums, separated by ;")
    probe_mode: ProbeMode = setting(
        "train",
        "mode of the model in probes. In eval mode BatchNorm uses its running statistics and dropout is off, as in most papers on "
        "gradient inversion; training steps never send such a gradient",
    )

    @cached_property
    def group_sizes(self) -> tuple[int, ...]:
        """The sizes of ``aggregate-clients``, in their order; ``ConfigError`` for a text that is no list of them."""
        text = self.aggregate_clients
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        sizes = tuple(int(word) for word in words if re.fullmatch(SIZE, word))
        if len(set(sizes)) < len(words) or sizes == (1,):
            raise ConfigError(
                f"aggregate-clients is {shown(text)}; allowed: whole numbers of at least 1, each once, separated by commas, "
                "such as 1,2,4, and not 1 alone: the sum of one client is its plain probe, which probe-attacks attack"
            )
        return sizes

    def check_groups(self, clients: int) -> None:
        """Raise ``ConfigError`` for sums without attacks, attacks without sums, and groups above ``clients`` (0: unknown)."""
        text, attacks = self.aggregate_clients, self.aggregate_attacks.strip()
        if self.group_sizes and not attacks:
            raise ConfigError(
                f"aggregate-clients is {text!r}, and aggregate-attacks is empty: name attacks on the sums, such as "
                "InvertingGradients()"
            )
        if attacks and not self.group_sizes:
            raise ConfigError(
                f"aggregate-attacks is {attacks!r}, and aggregate-clients is empty: set the group sizes of the sums, such as 1,2,4"
            )
        if clients and (too_large := [size for size in self.group_sizes if size > clients]):
            raise ConfigError(
                f"aggregate-clients is {text!r}, and {too_large[0]} is more than all clients; allowed: at most {clients}"
            )


SETTINGS = FederatedSettings
