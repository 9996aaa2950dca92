"""What budget the noise on smashed data has spent."""

from __future__ import annotations

from collections.abc import Mapping

from clients.task.task import Task
from strategies.exchange.guard import Rows

WITH_PROBES = "epsilon-with-probes"
"""Of training and evaluation together with audit batches, which are transmissions that only an audit asks for."""
ALL_CUTS = "epsilon-all-cuts"
"""Of all that was sent of an image at all cuts of one model so far, where a run serves the same images at several."""


def record_privacy(task: Task, rows: Rows, releases: int, more: Mapping[str, int]) -> None:
    """Rows "epsilon" and "delta" of clipped and noised smashed data, and others of more that was sent of the same example.

    Each is the exact budget of independent Gaussian noise on that many transmissions of an example, which the column "releases"
    says; it grows with the square root of their number and not by adding up. ``releases`` is that of the training or test image
    that the run has sent most often, ``more`` maps a metric to the number with further transmissions; it has no row where these
    are none.
    """
    for defense in task.plan.defenses().smashed_defenses:
        if spent := defense.privacy(releases):
            for metric, times in {"epsilon": releases, **more}.items():
                if metric == "epsilon" or times > releases:
                    epsilon = defense.privacy(times)["epsilon"]
                    rows.row(task, metric=metric, value=epsilon, worst=epsilon, releases=times)
            rows.row(task, metric="delta", value=spent["delta"], worst=spent["delta"])
