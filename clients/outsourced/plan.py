"""Settings that a run of outsourced training fixes for its clients."""

from dataclasses import dataclass

from clients.task.task import WholeModelPlan
from defenses.checks import Rounds


@dataclass(frozen=True)
class OutsourcedPlan(WholeModelPlan):
    """A plan of outsourced training: the plan of a whole model, trained by the server.

    Attributes:
        upload_passes: How often a client uploads each image, under fresh draws wherever a defence draws afresh at every use.
    """

    upload_passes: Rounds = 1
