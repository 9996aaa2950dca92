"""The active server: it sends clients manipulated models, requests one step on each, and has the replies attacked."""

from collections.abc import Callable, Sequence

from attacks.active.base import ActiveAttack, AgreedModel
from attacks.base import AnyAttack
from attacks.local_model import shared_tensors
from attacks.metrics.costs import MODEL_REFUSED
from attacks.observations import AttackError
from attacks.spec import stages_of
from clients.task.task import Task
from defenses.random_draws import generator_for
from defenses.tensors import Tensors
from strategies.audit.jobs import AttackJob, grouped, without_score
from strategies.audit.kinds import Observed
from strategies.audit.threat_card import ACTIVE_SERVER, ThreatCard
from strategies.exchange.guard import Answers
from strategies.federated.audit import UpdateAudit, fewest_guesses, seen_updates
from strategies.federated.observations import ACTIVE

Ask = Callable[[Task, Tensors], Answers]
"""(orders, weights of the model to send) -> partition -> the updates of one step that answer it."""


class ActiveServer:
    """Probe with manipulated models, one for each attack of the kind ``ACTIVE``.

    Training and honest probes always get the agreed model, which manipulated probes never change. Clients may refuse a model
    other than the agreed one; each attack has a row with the number of refusals ("model-refused").
    """

    def __init__(self, audit: UpdateAudit, ask: Ask) -> None:
        self._audit, self._ask = audit, ask
        self._auditor, self._recorder = audit.auditor, audit.recorder

    def probe(self, task: Task, weights: Tensors) -> None:
        """Make and send the models of one round in place of the agreed ``weights``, and queue the attacks on the replies."""
        judges: dict[int, bool] = {}
        for at, group in enumerate(grouped(self._audit.attacks[ACTIVE])[0]):
            try:
                sent = self._manipulated(group[0], task, weights)
            except Exception as error:
                why = str(error) if isinstance(error, AttackError) else f"{type(error).__name__}: {error}"
                failed = without_score(why, len(self._auditor.exchange.nodes))
                for attack in group:
                    self._recorder.row(task, attack=repr(attack), card=_card(task, attack), **failed)
                continue
            # A deployed node knows the draws of its latest answer only: that to the model before must have been judged by now.
            self._auditor.collect(wait=at > 0 and not self._auditor.repeats_draws)
            self._observe(task, f"{at:02d}", group, sent, judges)

    def _manipulated(self, attack: AnyAttack, task: Task, weights: Tensors) -> Tensors:
        first, observed, card = stages_of(attack)[0], Observed(task, dict(weights), []), task.plan.data_card()
        if not isinstance(first, ActiveAttack):
            raise AttackError(f"{first} sends no model")
        own = ("attack", task.plan.seed, repr(first))
        if first.needs_auxiliary:
            first = first.fit(ACTIVE.knowledge(observed), generator_for(*own, "fit"))
        agreed = AgreedModel(observed.model(), card.input_shape, card.mean, card.std)
        model = first.manipulated(agreed, generator_for(*own, "manipulate", task.round))
        return {name: tensor.clone() for name, tensor in shared_tensors(model).items()}

    def _observe(
        self, task: Task, label: str, group: Sequence[AnyAttack], sent: Tensors, judges: dict[int, bool]
    ) -> None:
        good = self._ask(task, sent)
        # A client that answers no probes at all does not refuse this model; it has a row of its own.
        judged = len(self._auditor.exchange.nodes) - len(good.refused) + good.models_refused
        for attack in group if judged else ():
            self._recorder.row(
                task, metric=MODEL_REFUSED.name, value=good.models_refused / judged, n=judged, attack=repr(attack),
                card=_card(task, attack),
            )  # fmt: skip
        seen = seen_updates(task, ACTIVE, good, task.target_records)
        if not seen:
            return
        card = self._audit.card(task, ACTIVE, seen, sent, None)
        # Null guesses are about the same images whatever was sent: they are scored once.
        new = [update for update in seen if update.partition not in judges]
        images = fewest_guesses(self._audit.attacks[ACTIVE], seen)
        willing = self._auditor.baselines(task, ACTIVE, new, card, images) if new else []
        judges |= {update.partition: update.partition in willing for update in new}
        seen = [update for update in seen if judges[update.partition]]
        if seen:
            name = f"{self._audit.label}-r{task.round:04d}-{ACTIVE.name}-{label}"
            self._auditor.submit(AttackJob(name, tuple(group), ACTIVE, Observed(task, sent, seen), card))


def _card(task: Task, attack: AnyAttack) -> ThreatCard:
    bare = ThreatCard(observation=ACTIVE.title, round=task.round, server=ACTIVE_SERVER)
    return bare.but(threat_class=attack.threat_class or None)
