"""A cell: one attack on one defence in one round, with its scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attacks.metrics.costs import ATTACK
from attacks.metrics.guesses import MEMBERSHIP_AUC, MEMBERSHIP_TPR
from attacks.metrics.images import IDENTIFIED, RECOGNISABLE
from attacks.metrics.metric import FAMILIES, IMAGES
from attacks.metrics.names import Role
from simulations.report.studies.intervals import Count
from simulations.report.studies.messages import Image, MessageSize
from simulations.report.studies.score import PARTLY_FAILED, Score, Scored
from simulations.report.text import setting
from strategies.audit.threat_card import ThreatCard

RESULTS = tuple(family.decides for family in FAMILIES)
"""Scores in the order in which they say how an attack did."""
MEMBERSHIP_SCORES = frozenset((MEMBERSHIP_AUC.of(), MEMBERSHIP_TPR.of()))
FOUND = IDENTIFIED.of("original")
"""Share of the images that the guess identifies among others of their class."""
SEEN = RECOGNISABLE.of("original")
"""Share of the images that are recognisable in the guess."""


@dataclass(frozen=True)
class Cell:
    """One attack on one defence in one round under one threat card.

    Attributes:
        defense: Pipeline text.
        role: What its rows are for.
        attack: Attack text, or the name of a null baseline or scale.
        round: Attacked round; ``final``: whether that is the model after the last one.
        card: What the threat cards of its rows share; see ``ThreatCard.lasting``.
        scores: (metric, reference) -> score.
        null_scores: (metric, reference) -> null baseline -> mean, for the same images.
        leaking: Scores that lie above the best null baseline with their whole interval, in at least one seed; and the rate of
            membership as in ``names_members``.
        chances: ``FOUND`` and ``SEEN`` -> the probability that a guess which knows the class alone has as many images; 1 where that
            cannot be known.
        each: ``FOUND`` and ``SEEN`` -> each attacked image -> its message, and 1 where it is (``each_image``).
        comparable: Images of the same name under another defence are the same ones.
        chance: The largest probability that such a guess identifies one image; None where no image was looked for among others.
        members: Members among the records of a test of membership, over all seeds; None where the rows do not say.
        scales: Scale -> PSNR against the original, in dB: what a blurred copy of the images scores, and the mean of their class.
        clients: Of how many clients its rows are, of the seed with the fewest; None where they do not say.
    """

    defense: str
    role: Role
    attack: str
    round: int
    card: ThreatCard
    scores: dict[Scored, Score]
    null_scores: dict[Scored, dict[str, float]] = field(default_factory=dict)
    leaking: frozenset[Scored] = frozenset()
    chances: Mapping[Scored, float] = field(default_factory=dict)
    each: Mapping[Scored, Mapping[Image, tuple[str, int]]] = field(default_factory=dict)
    comparable: bool = True
    chance: float | None = None
    members: int | None = None
    final: bool = False
    scales: dict[str, float] = field(default_factory=dict)
    clients: int | None = None

    @property
    def rung(self) -> MessageSize:
        """What entered the attacked message; 0 images where the card does not say."""
        return MessageSize.of(self.card)

    @property
    def observation(self) -> str:
        """The attacker's observation."""
        return self.card.observation

    def count(self, of: Scored) -> Count | None:
        """(k, n): k of n images are ``FOUND`` or ``SEEN``; None where none was looked for among others."""
        score = self.scores.get(of)
        return (round(score.mean * score.n), score.n) if score and score.mean is not None else None

    @property
    def identified(self) -> Count | None:
        """``count`` of ``FOUND``."""
        return self.count(FOUND)

    @property
    def recognisable(self) -> Count | None:
        """``count`` of ``SEEN``."""
        return self.count(SEEN)

    @property
    def psnr(self) -> Score | None:
        """PSNR against the original images, in dB."""
        return self.scores.get(IMAGES.decides)

    @property
    def tells_members(self) -> bool:
        """Whether it distinguishes members better than chance: by the AUC, or by the rate at 1 % false positives."""
        return bool(MEMBERSHIP_SCORES & self.leaking)

    @property
    def is_upper_bound(self) -> bool:
        """Whether the attack uses information that no server has: an upper bound on attacks, not an attack."""
        return bool(self.card.upper_bound)

    def fact(self, key: str) -> str:
        """One setting of the threat card; "" where the card does not name it."""
        return setting(self.card.to_json().get(key) or "")

    @property
    def has_result(self) -> bool:
        """Whether the attack ran and was scored; a time and the attack's own loss are no result."""
        return self.status != "failed" and any(self.mean(*key) is not None for key in RESULTS)

    @property
    def leading(self) -> Score:
        """The score of the attack's target: images, labels, members or classes."""
        leading = (*RESULTS, ATTACK.of(), *self.scores)
        return next(self.scores[key] for key in leading if key in self.scores)

    @property
    def status(self) -> str:
        """Status of the leading score; "partly failed" if the attack gave no score at all for other seeds."""
        broken = self.scores.get(ATTACK.of())
        lost = broken is not None and broken.status == "failed" and self.leading.mean is not None
        return PARTLY_FAILED if lost else self.leading.status

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
        return max(self.null_scores.get(IMAGES.decides, {}).items(), key=lambda item: item[1], default=None)

    @property
    def gap(self) -> float | None:
        """PSNR over the best null baseline, in dB."""
        score, null = self.psnr, self.best_null
        return score.mean - null[1] if score and score.mean is not None and null else None
