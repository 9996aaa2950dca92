"""What threat cards of both scenarios say in the same words."""

from __future__ import annotations

from clients.task import ONE_STEP_PER_UPDATE, Task


def defense_strength(task: Task, *, one_step: bool) -> dict[str, str]:
    """What a threat card says of a defence of gradients or updates: whether accuracy was paid at the same strength.

    Args:
        task: The clients' orders.
        one_step: The observation is an update of one step that the server asked for, not one of training.
    """
    found = {defense.per for defense in task.defenses().update_defenses}
    if not found:
        return {}
    if "update" not in found:
        return {"defense_strength": "per step, as in training"}
    if not one_step or task.local_steps == 1:
        return {"defense_strength": "per update, as in training"}
    once = task.local_steps or "all"
    return {"defense_strength": f"{ONE_STEP_PER_UPDATE}; in training it acts once on {once} local steps"}
