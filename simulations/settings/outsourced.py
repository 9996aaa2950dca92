"""Settings of outsourced training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from clients.wire.limits import Images, Rounds
from clients.wire.schema import setting
from simulations.settings.common import batches_per_message
from simulations.settings.whole_models import WholeModelSettings


class OutsourcedSettings(WholeModelSettings):
    """Names, defaults, meanings and ranges of the settings of outsourced training."""

    usual: ClassVar[Mapping[str, Any]] = {
        "defenses": "VisualMixer(window_lower=2, window_upper=16); ATS(policies='3-1-7+43-18-18')"
    }

    upload_attacks: str = setting(
        "AsUploaded()",
        "attacks on uploaded images, separated by ;, each followed by refinements after |, and on all uploads of a client at once, "
        "such as JointEncodingInversion(). With adaptive, refinements that know a defence are run after AsUploaded()",
    )
    upload_passes: Rounds = setting(
        1,
        "number of times that a client uploads each image; defences such as InstaHide draw anew each time",
    )
    model_attacks: str = setting("LossThreshold()", "attacks on the model that the server trained, separated by ;")
    batches_per_message: Images = batches_per_message()


SETTINGS = OutsourcedSettings
