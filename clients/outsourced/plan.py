"""What a run of outsourced training fixes for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from clients.task.task import Plan, WholeModelPlan


@dataclass(frozen=True)
class OutsourcedPlan(WholeModelPlan):
    """A plan of outsourced training: that of whole models, which here the server trains.

    Attributes:
        upload_passes: How often a client uploads each image, under fresh draws wherever a defence draws afresh at every use.
    """

    upload_passes: int = 1


def outsourced_plan(plan: Plan) -> OutsourcedPlan:
    """The plan as that of outsourced training.

    Raises:
        TypeError: When it is of another scenario.
    """
    if not isinstance(plan, OutsourcedPlan):
        raise TypeError(f"in a run of scenario {plan.scenario!r} nobody uploads images")
    return plan
