"""The work of ``fedveil attack --weights`` and ``--predictions``: the audit of a final model, and its results shown."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message

from attacks.membership.loss_threshold import Membership
from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.metric import MEMBERSHIP
from attacks.metrics.names import scores_to_texts
from attacks.metrics.training import TEST_ACCURACY
from clients.messages.node import reply_to
from clients.scoring.audit import ALONE, membership_scores
from clients.scoring.guesses import read_guesses
from clients.task.local_data import Client
from clients.training.evaluation import CLEAN_ACCURACY, evaluate_weights
from clients.wire.records import metrics, tensors_of
from simulations.console.command_line import errors
from simulations.console.results import print_json, table
from simulations.console.terminal import Terminal
from simulations.external_app.recorded.command import watching
from simulations.external_app.recorded.missing import PREDICTIONS
from simulations.external_app.recorded.settings import Request
from simulations.external_app.released.doubts import Null, doubted, general_doubt, null_of
from simulations.external_app.released.model import SCENARIO, ReleasedModel, prepare
from simulations.external_app.released.records import Records, read_pictures
from simulations.external_app.study import AppResults
from simulations.report.analysis.run import read_run
from simulations.report.page.tables import AREA, RATE
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.text import dagger, percent, two, within
from simulations.run_folder.rows import Row
from simulations.runtime.local_grid import LocalGrid
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Observed, Seen
from strategies.audit.pool import AttackPool
from strategies.audit.threat_card import KnownLabels, ThreatCard
from strategies.exchange.exchange import Exchange
from strategies.external_app.settings import AppStudy
from strategies.outsourced.observations import MODEL

LOSS = "test-loss-original"


class Judge(LocalGrid):
    """A node in this process that scores tests of membership as a client does."""

    def __init__(self, records: Records) -> None:
        super().__init__(1)
        self.records = records

    def answer(self, message: Message) -> Message:
        """Scores of a test for every member and every tested non-member; none of a test that failed."""
        tensors, plan = tensors_of(message, "guesses"), self.records.task.plan
        ((test, _),) = read_guesses("membership", tensors, 1, plan.build_model())
        assert isinstance(test, Membership)
        scores = {} if test.failure else {ALONE: membership_scores(Client(self.records), test)}
        return reply_to(message, {"metrics": metrics({**scores_to_texts(scores)})})


def audit(released: ReleasedModel, out: Path, begin: Callable[[str], object] = str) -> list[Row]:
    """Attack a model as a run does, each attack announced by ``begin``; write rows and report, and return the validated rows."""
    plan, records, request = released.plan, released.records, released.request
    paths = {option.strip("-"): str(path) for option, path in request.paths.items()}
    shown = {**request.settings.to_mapping(), **paths, "scenario": SCENARIO}
    study = AppStudy(plan, {MODEL: released.attacks}, shown, SCENARIO, "", plan.model, plan.seed, SCENARIO)
    results = AppResults.open(out, study)
    judge, task = Judge(records), records.task
    exchange = Exchange(judge, dict(enumerate(judge.get_node_ids())), 0.0)
    auditor = Auditor(exchange, AttackPool(0), results, share_images=False)
    clean, members = evaluate_weights(records, released.weights), Records(plan, members_alone=True)
    seen_by_members = evaluate_weights(members, released.weights)
    sound = all(math.isfinite(of[LOSS]) for of in (clean, seen_by_members))
    results.row(task, metric=TEST_ACCURACY.name, reference="original", value=clean[CLEAN_ACCURACY], n=records.num_test)
    seen, null = [Seen(0, 0, records.num_train)], null_of(plan, records) if sound else None
    known = auditor.card(task, MODEL, seen, clean[CLEAN_ACCURACY], labels=KnownLabels.KNOWN)
    card, right = _card(released, known, null), seen_by_members["test-accuracy-transformed"]
    verdicts = partial(doubted, general=general_doubt(records, null, right))
    try:
        for at, attack in enumerate(released.attacks):
            if not sound:
                results.row(
                    task, attack=repr(attack), metric=MEMBERSHIP_AUC.name, card=card, value=None, n=1, failures=1, status="failed",
                    message="the model's logits are not finite",
                )  # fmt: skip
                continue
            begin(repr(attack))
            observed = Observed(task, released.weights, seen)
            auditor.submit_groups(f"{SCENARIO}-{at:02d}", [(attack,)], MODEL, observed, card)
            auditor.collect(wait=True)
    except KeyboardInterrupt:
        results.judge(verdicts)
        results.conclude(finished=False)
        raise
    results.judge(verdicts)
    return results.conclude()


def _card(released: ReleasedModel, card: ThreatCard, null: Null | None) -> ThreatCard:
    """The threat card of every attack; the null AUC is of shadow models, too."""
    plan, request, aside = released.plan, released.request, len(released.records.set_aside)
    how = f"learning rate {plan.learning_rate:g}, momentum {plan.momentum:g}, weight decay {plan.weight_decay:g}"
    has = "predictions of the tested records alone" if PREDICTIONS in request.paths else "weights"
    return card.but(
        attacker_has=has, normalisation=request.settings.normalisation or None, null_auc=null and list(null.area),
        set_aside=f"{aside} non-members, which are not tested" if aside else None,
        shadow_training=f"{plan.local_epochs} epochs of SGD in batches of {plan.batch_size}, {how}" if aside else None,
    )  # fmt: skip


def attack_model(console: Terminal, request: Request, out: Path, *, as_json: bool = False) -> bool:
    """Attack a final model, print the results, and with ``as_json`` a line of JSON. Returns whether all attacks failed.

    ``ConfigError`` comes before any work.
    """
    released = prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    records, page = released.records, out / "report.html"
    members, others, aside = records.num_train, records.num_test, len(records.set_aside)
    plan = released.plan
    copies = read_pictures(plan.members, plan.data_dir)[1] if plan.members else 0
    left = f"{aside} non-members are set aside; {copies} copies are left out"
    console.say(f"{members} members and {others} non-members are tested; {left}")
    by_chance = percent((others // 100 + 1) / (others + 1))
    console.say(
        f"by chance, the AUC is 0.50 and the true positive rate (TPR) at 1 % false positives (FPR) is {by_chance}"
    )
    with watching(console) as begin:
        rows = audit(released, out, begin)
    failures = {row.attack: row.message for row in rows if row.is_attack and row.status == "failed"}
    findings = [finding for summary in read_run(out).summaries for finding in summary.findings]
    cells = [cell for finding in findings for cell in finding.cells]
    numbers = (AREA.heading, RATE.heading, "shadow AUC")
    console.print(table(["attack", "verdict"], numbers, map(_line, cells)))
    if any(dagger(score.status) for cell in cells for score in cell.scores.values()):
        console.say("  †: no verdict follows, no AUC without a defence is above chance, or few non-members")
    for caveat in (text for finding in findings for text in finding.all_caveats):
        console.say(f"caveat: {caveat}")
    if null := cells[0].card.more.get("null_auc"):
        of = f"{two(null[0])}, {within(null[1], null[2], two)}"
        console.say(f"null AUC, by models that saw no tested record: {of}; expected of folders that are alike: 0.50")
    else:
        console.say("caveat: without a null AUC any other difference between the folders may explain the scores")
    for attack, why in failures.items():
        errors.say(f"{attack} failed: {why}")
    console.say(f"report: {page}")
    if as_json:
        about = {"directory": str(out), "page": str(page), "accuracy": findings[0].accuracy.to_json()}
        told = [_to_json(cell) | {"failure": failures.get(cell.attack, "")} for cell in cells]
        print_json(
            {**about, "members": members, "nonmembers": others, "set_aside": aside, "copies": copies, "attacks": told}
        )
    return all(cell.attack in failures for cell in cells)


def _line(cell: Cell) -> list[str]:
    """Of the table, as the report shows scores."""
    shown = ("\n".join(filter(None, (str(of.text), *of.below))) for of in (AREA.of(cell), RATE.of(cell)))
    return [cell.attack, _to_json(cell)["verdict"], *shown, two(cell.mean("shadow-auc"))]


def _to_json(cell: Cell) -> dict[str, Any]:
    """For programs, as `fedveil attack --help` describes it; the verdict is by the rule of a run's report."""
    area, rate = (cell.scores.get(of) or Score(None) for of in (MEMBERSHIP.decides, MEMBERSHIP_TPR.of()))
    verdict = cell.card.no_verdict or ("infers members" if cell.tells_members else "not shown to infer members")
    null = dict(zip(("null_auc", "null_low", "null_high"), cell.card.more.get("null_auc") or (None,) * 3, strict=True))
    return {
        "attack": cell.attack, "verdict": verdict if area.mean is not None else "failed", "auc": area.mean, "low": area.low,
        "high": area.high, "tpr": rate.mean, "tpr_low": rate.low, "tpr_high": rate.high,
        "shadow_auc": cell.mean("shadow-auc"), **null, "status": cell.status,
        "tpr_status": rate.status if rate.mean is not None else "",
    }  # fmt: skip
