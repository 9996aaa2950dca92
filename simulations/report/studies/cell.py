"""A cell: one attack on one defence in one round, with its scores."""

from __future__ import annotations

from dataclasses import dataclass, field

from attacks.metrics.costs import ATTACK, LOSSES
from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import RETRIEVAL
from attacks.metrics.metric import FAMILIES, IMAGES
from attacks.metrics.names import Role
from simulations.report.studies.control import CLASS_METRICS
from simulations.report.studies.recovery import RECOVERED, BestImage
from simulations.report.studies.score import PARTLY_FAILED, Score, Scored
from simulations.report.text import setting
from simulations.run_folder.rows import shown_name
from strategies.audit.threat_card import ThreatCard

RESULTS = tuple(one.decides for one in FAMILIES)
"""Scores in the order in which they say how an attack did."""
LEADING = (*RESULTS, ATTACK.of())
MEMBERSHIP_SCORES = frozenset((MEMBERSHIP_AUC.of(), MEMBERSHIP_TPR.of()))
Count = tuple[int, int]
"""(k, n): k of n images."""
PICKED = RETRIEVAL.of("original")
"""Share of true images that are nearest to their guess among candidates."""


@dataclass(frozen=True)
class Cell:
    """One attack on one defence in one round under one threat card.

    Attributes:
        defense: Pipeline text.
        role: What its rows are for.
        attack: Attack text, or the name of a null baseline or scale.
        round: Attacked round.
        final: Whether that is the model after the last round.
        card: What the threat cards of its rows share; see ``ThreatCard.lasting``.
        scores: (metric, reference) -> score.
        null_scores: (metric, reference) -> null baseline -> mean, for the same images.
        leaking: Scores that lie above the best null baseline with their whole interval, in at least one seed; ``PICKED`` where
            true images are identified far more often than chance; and the rate of membership as in ``names_members``.
        model_accuracy: Test accuracy of the attacked model, mean over seeds.
        members: Members among the records of a test of membership, over all seeds; None where the rows do not say.
        scales: Scale -> PSNR against the original, in dB: what a blurred copy of the images scores, and the mean of their class.
        picked_scales: Scale -> share of the true images that it identifies.
        chance_of_retrieval: How often a null guess is nearest to its image among the candidates; None where it was not tried.
        recovered_by_class: (k, n): k of the same n images are recovered by the mean of the image's class, the guess of an attacker
            that knows only the class; None where it was not made.
        best: The best-recovered image (``BestImage.rank``); None where none is recovered.
        detailed: How many of the recovered images lie above their own mean colour; None where the rows do not say.
        clear: In at least one seed the whole interval of PSNR lies above the best null baseline and above the mean of the class.
        clients: Of how many clients its rows are, of the seed with the fewest; None where they do not say.
        too_few: No seed has enough images for a verdict, or enough other images to look for them among.
        unjudged: Why, where it is for want of others.
    """

    defense: str
    role: Role
    attack: str
    round: int
    card: ThreatCard
    scores: dict[Scored, Score]
    null_scores: dict[Scored, dict[str, float]] = field(default_factory=dict)
    leaking: frozenset[Scored] = frozenset()
    model_accuracy: float | None = None
    members: int | None = None
    final: bool = False
    scales: dict[str, float] = field(default_factory=dict)
    picked_scales: dict[str, float] = field(default_factory=dict)
    chance_of_retrieval: float | None = None
    recovered_by_class: Count | None = None
    best: BestImage | None = None
    detailed: int | None = None
    clear: bool = False
    clients: int | None = None
    too_few: bool = False
    unjudged: str = ""

    @property
    def name(self) -> str:
        """Name of the attack on pages."""
        return shown_name(self.role, self.attack)

    @property
    def share(self) -> Score | None:
        """Share of the recovered images, with its interval; None where rows do not report it."""
        score = self.scores.get(RECOVERED)
        return score if score and score.mean is not None else None

    @property
    def recovered(self) -> Count | None:
        """(k, n): k of n images were recovered, by the rule of ``recovery.DEFINITION``; None where rows do not report it."""
        return _counted(self.share)

    @property
    def picked(self) -> Count | None:
        """(k, n): k of n true images were identified among the candidates; None where identification was not tested."""
        return _counted(self.scores.get(PICKED))

    @property
    def psnr(self) -> Score | None:
        """PSNR against the original images, in dB."""
        return self.scores.get(IMAGES.decides)

    @property
    def nulls(self) -> dict[str, float]:
        """Null baseline -> PSNR against the original, in dB."""
        return self.null_scores.get(IMAGES.decides, {})

    @property
    def leaks(self) -> bool:
        """Whether the attack's PSNR lies above the best null baseline."""
        return IMAGES.decides in self.leaking

    @property
    def picks(self) -> bool:
        """Whether it identifies far more true images than chance explains."""
        return PICKED in self.leaking

    @property
    def tells_members(self) -> bool:
        """Whether it distinguishes members better than chance: by the AUC, or by the rate at 1 % false positives."""
        return bool(MEMBERSHIP_SCORES & self.leaking)

    @property
    def cost(self) -> float | None:
        """The attack's own loss at the end."""
        return next((self.mean(one.name) for one in LOSSES if one.of() in self.scores), None)

    @property
    def observation(self) -> str:
        """The attacker's observation."""
        return self.card.observation

    @property
    def is_upper_bound(self) -> bool:
        """Whether the attack uses information that no server has: an upper bound on attacks, not an attack."""
        return bool(self.card.upper_bound)

    @property
    def knows_defenses(self) -> bool:
        """Whether the attack uses its cell's defence; a threat card lists only attacks that do not."""
        return self.card.more.get("knows_defenses") is not False

    def fact(self, key: str) -> str:
        """One setting of the threat card; "" where the card does not name it."""
        return setting(self.card.to_json().get(key) or "")

    @property
    def chance_of_identification(self) -> float | None:
        """Chance that a null guess is identified: one in the number of true images attacked together, by the threat card."""
        count = self.card.images
        return 1 / count if count and count >= 1 else None

    @property
    def has_result(self) -> bool:
        """Whether the attack ran and was scored; a time and the attack's own loss are no result."""
        return self.status != "failed" and any(self.mean(*key) is not None for key in RESULTS)

    @property
    def draws_classes(self) -> bool:
        """Whether the attack drew class representatives, which guess no single person's image."""
        return any((metric, "") in self.scores for metric in CLASS_METRICS)

    @property
    def leading(self) -> Score:
        """The score of the attack's target: images, labels, members or classes."""
        return next((self.scores[key] for key in LEADING if key in self.scores), next(iter(self.scores.values())))

    @property
    def status(self) -> str:
        """Status of the leading score; "partly failed" if the attack gave no score at all for other seeds."""
        broken = self.scores.get(ATTACK.of())
        if broken and broken.status == "failed" and self.leading.mean is not None:
            return PARTLY_FAILED
        return self.leading.status

    def mean(self, metric: str, reference: str = "") -> float | None:
        """Mean of one score; None where there is none."""
        score = self.scores.get((metric, reference))
        return score.mean if score else None

    def null(self, metric: Scored) -> float | None:
        """The mean of the best null baseline for a score; None without one."""
        return max(self.null_scores.get(metric, {}).values(), default=None)

    @property
    def best_null(self) -> tuple[str, float] | None:
        """(name, PSNR) of the highest null baseline."""
        return max(self.nulls.items(), key=lambda item: item[1]) if self.nulls else None

    @property
    def gap(self) -> float | None:
        """PSNR over the best null baseline, in dB."""
        score, null = self.psnr, self.best_null
        return score.mean - null[1] if score and score.mean is not None and null else None


def _counted(share: Score | None) -> Count | None:
    """How many of its images a share is of."""
    return (round(share.mean * share.n), share.n) if share and share.mean is not None else None
