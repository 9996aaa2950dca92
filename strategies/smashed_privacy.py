"""What budget the noise on smashed data has spent."""

from __future__ import annotations

from clients.task import Task
from strategies.guard import Rows


def record_privacy(task: Task, rows: Rows, releases: int, with_audits: int) -> None:
    """Rows "epsilon", "epsilon-with-probes" and "delta" of clipped and noised smashed data.

    Args:
        task: Orders of the round.
        rows: Where the rows go.
        releases: How often training and evaluation have sent the example that they sent most often, of training or test images.
        with_audits: The same with audit batches, which are transmissions that only an audit asks for.
    """
    for defense in task.plan.defenses().smashed_defenses:
        if spent := defense.privacy(releases):
            rows.row(task, metric="epsilon", value=spent["epsilon"], worst=spent["epsilon"])
            if with_audits > releases:
                asked = defense.privacy(with_audits)["epsilon"]
                rows.row(task, metric="epsilon-with-probes", value=asked, worst=asked)
            rows.row(task, metric="delta", value=spent["delta"], worst=spent["delta"])
