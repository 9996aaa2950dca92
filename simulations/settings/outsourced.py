"""Settings of outsourced training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clients.wire.limits import MOST_IMAGES
from simulations.settings.common import CommonSettings
from simulations.settings.fields import between, limited, setting
from simulations.settings.whole_models import WholeModelSettings

USUAL: Mapping[str, Any] = {"defenses": "VisualMixer(window_lower=2, window_upper=16); ATS(policies='3-1-7+43-18-18')"}
"""What such runs have where nobody sets it (``Scenario.usual``)."""


@dataclass(frozen=True)
class OutsourcedSettings:
    """Their names, defaults, meanings and ranges."""

    upload_attacks: str = setting(
        "AsUploaded()",
        "attacks on uploaded images, separated by ;, refinements behind |; with adaptive, those that know a defence are put behind "
        "AsUploaded()",
    )
    collection_attacks: str = setting(
        "", "attacks on all that a client uploaded together, separated by ;, such as JointEncodingInversion()"
    )
    upload_passes: int = setting(
        1,
        "times that a client uploads each image, under fresh draws of what draws afresh (InstaHide)",
        **limited("upload_passes"),
    )
    model_attacks: str = setting("LossThreshold()", "attacks on the model that the server trained, separated by ;")
    upload_batches: int = setting(4, "batches of uploaded images in a message", **between(1, MOST_IMAGES))


SETTINGS: tuple[type[Any], ...] = (CommonSettings, WholeModelSettings, OutsourcedSettings)
"""All settings of this scenario; ``simulations.settings.plain`` reads them."""
