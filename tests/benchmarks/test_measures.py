"""Arithmetic that reported results rest on, where scripts have their own."""

from typing import Any

import leak_picture
import torch
from against_published import agreement
from released_rows import Row, close, equal, guarded
from spear_scaling import scored
from torch import Tensor

from attacks.guesses import Reconstruction
from attacks.scoring.roc import tpr_at_fpr

COUNT = 1000
INSIDE = torch.arange(2 * COUNT) < COUNT


def test_exact_and_recovered_images_are_counted_and_failures_are_neither() -> None:
    truth = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    near = torch.stack([truth[0], (truth[1] - 0.01).abs(), 0.5 * truth[2]])
    found = scored(Reconstruction(near[[2, 0, 1]], torch.zeros(3)), truth)
    assert (found["exact"], found["recovered"]) == (1, 2)
    assert scored(Reconstruction.grey(3, (1, 4, 4), "why"), truth)["failure"] == "why"


def test_the_map_of_what_leaks_puts_the_seeds_together() -> None:
    def line(network: str, seed: int, gains: list[float], recognisable: list[float]) -> dict[str, Any]:
        about = {"network": network, "column": "1", "seed": seed, "n": len(gains)}
        scores = {"psnr": [10.0 + gain for gain in gains], "mean": [10.0] * len(gains), "recognisable": recognisable}
        return about | scores

    lines = [line("b", 1, [3.0, 5.0], [0.0, 1.0]), line("b", 0, [1.0, 3.0], [0.0, 0.0])]
    lines.append(line("base", 1, [1.0, 4.0], [0.0, 0.0]))
    text = leak_picture.printed(lines, ["base", "a", "b"], ["1", "1 round"])
    assert "round" not in text  # Columns without lines are left out.
    assert "| a | - |" in text
    assert "| b | +3.0 ± 2.6 (+2.0, +4.0) |" in text  # t(0.975, 3) = 3.182, std = 1.633, n = 4.
    assert "| b | 1 of 4 (0, 1) |" in text
    assert "| b | +1.5 ± 6.4 |" in text  # Of seed 1 alone: +2 and +1; t(0.975, 1) = 12.706, std = 0.707, n = 2.


def membership(named: int) -> Tensor:
    """Of members and as many others; so many members lie above all others, and the rest of both kinds alternates below."""
    order = torch.arange(COUNT, dtype=torch.float64)
    return torch.cat([torch.where(order < named, 2.0 * COUNT + order, order), order + 0.5])


def test_published_code_differs_by_rates_and_areas_and_not_by_sampling_intervals() -> None:
    ours, tied, lower = membership(205), membership(205), membership(205)
    for same in (ours.clone(), 3 * ours - 7, membership(195)):  # the last by 0.01, the limit itself
        assert agreement(ours, same, INSIDE) == "agrees"
    # Ties above all but one non-member: 0.205 at 0.1 % of false positives becomes 0, and little else changes.
    tied[:205] = tied[-2:] = 2 * COUNT
    assert tpr_at_fpr(tied[INSIDE], tied[~INSIDE], 0.001).value == 0.0
    lower[300:900] -= 200  # of members that no small false positive rate names
    for other in (tied, membership(194), lower):
        assert agreement(ours, other, INSIDE) == agreement(other, ours, INSIDE) == "differs"


def test_a_difference_is_on_purpose_only_where_a_reason_explains_it() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    assert close("x", "", one, one, 0.1, "reason").verdict == "agrees"
    assert close("x", "", one, other, 0.1, "reason", most=0.6).verdict == "differs on purpose"
    assert close("x", "", one, other, 0.1, "reason", most=0.4).verdict == "DISAGREES"
    assert close("x", "", one, other, 0.1, "reason").verdict == "DISAGREES", "a reason alone excuses no size"
    assert close("x", "", one, other, 0.1, most=0.6).verdict == "DISAGREES"
    assert equal("x", "", [(1, 2)], "reason", explained=True).verdict == "differs on purpose"
    assert equal("x", "", [(1, 2)], "reason").verdict == "DISAGREES"
    assert equal("x", "", [], "reason", explained=True).verdict == "DISAGREES"
    assert close("x", "", one, other, 0.1).verdict == "DISAGREES"
    assert close("x", "", one, one / 0 * 0, 0.1).verdict == "DISAGREES"

    def broken() -> list[Row]:
        return [close("x", "", one, other[:1], 0.1)]

    assert [row.verdict for row in guarded("x", broken, 1)] == ["DISAGREES"]
