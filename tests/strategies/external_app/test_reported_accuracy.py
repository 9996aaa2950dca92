"""The accuracy that an app reports from its own evaluation stands on the page as the app's word."""

import math
from dataclasses import asdict

from clients.wire.schema import readable
from strategies.external_app.claim import CLIENTS, SERVER, AppAccuracy, ReportedAccuracy


def test_of_several_metrics_the_latest_and_then_the_plainest_counts() -> None:
    reports = ReportedAccuracy()
    reports.observe(SERVER, 0, {"accuracy": 0.098})
    assert reports.found() is None, "round 0 is before training"
    reports.observe(SERVER, 1, {"accuracy": 0.3})
    reports.observe(CLIENTS, 2, {"val_acc": 0.1, "eval_accuracy": 0.8, "accuracy": 0.7, 1: 0.5})  # type: ignore[dict-item]
    assert reports.found() == AppAccuracy(0.7, "accuracy", CLIENTS, 2)
    reports.observe(SERVER, 2, {"test_acc": 0.6})
    assert reports.found() == AppAccuracy(0.6, "test_acc", SERVER, 2)


def test_names_and_values_of_accuracies_are_told_from_others() -> None:
    good = ("accuracy", "eval_acc", "test-accuracy", "evalAcc", "central_accuracy", "top1_acc")
    others = (
        "loss", "train_acc", "top5_accuracy", "accountant", "accelerator", "vacc", "accuracy_std", "top10_accuracy",
        "backdoor_accuracy", "accuracy_class_0", "acc@5", "fit_accuracy",
    )  # fmt: skip
    for name in (*good, *others):
        reports = ReportedAccuracy()
        reports.observe(CLIENTS, 1, {name: 0.5})
        assert (reports.found() is not None) is (name in good), name
    for value in (-0.1, 100.5, math.nan, math.inf, True, [0.5], "0.5"):
        reports = ReportedAccuracy()
        reports.observe(SERVER, 1, {"accuracy": value})
        assert reports.found() is None, value
    for data in (None, 3, {}, {"value": 2, "round": 1}, {"value": "x", "round": 1}, {"value": 0.5}):
        assert readable(AppAccuracy, data) is None, data
    kept = AppAccuracy(0.5, "acc", SERVER, 1)
    assert readable(AppAccuracy, asdict(kept)) == kept


def test_percent_is_recognised_over_all_rounds_and_not_by_rounding() -> None:
    for first, last, expected in ((40.0, 0.8, 0.008), (1.0000000000000002, 0.97, 0.97)):
        reports = ReportedAccuracy()
        reports.observe(SERVER, 1, {"accuracy": first})
        reports.observe(SERVER, 2, {"accuracy": last})
        assert reports.found() == AppAccuracy(expected, "accuracy", SERVER, 2)
