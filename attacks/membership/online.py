"""Online membership inference: shadow models are trained with and without each record in question."""

from __future__ import annotations

import torch

from attacks.local_model import local_model
from attacks.membership.loss_threshold import Membership, MembershipAttack
from attacks.membership.online_rules import FEWEST_WITH, OnlineTest
from attacks.membership.shadow_models import members_field
from attacks.observations import ClientUpdate
from defenses.checks import algorithm, choice_field, starts_field
from defenses.random_draws import seed_of


@algorithm
class OnlineAttack(MembershipAttack, trains_shadows="client", quick={"num_shadows": 4}):
    """Base of attacks whose shadow models are trained on the records in question, members and non-members alike.

    The papers' attacker holds the candidate record, as the attacker of every test of membership does. Beyond any server goes the
    pool that shadow models train on: the client's other members, and exactly the non-members that are scored. The client therefore
    trains the shadow models, as it trains its own model, under the same defences, for all rounds. Only the scores leave the client,
    and the number of training records of each shadow model ("shadow-members").

    Differs from the papers: each model judges a record once, as it is. The papers also average over augmented copies of the record.

    Attributes:
        num_shadows: Shadow models, trained by each client.
        num_members: Training records of each; 0: as many as the client's model was trained on, as in the paper. Each record is in
            two shadow models at least, and outside of two. If the shadow models are too few for that, the attack fails, and its
            error names the least number.
    """

    threat = (
        "global model, one update, the client's training procedure; the client's other members and exactly the non-members that "
        "are scored, with true classes (an upper bound: no server holds this pool)"
    )

    num_shadows: int = starts_field(8, 2 * FEWEST_WITH)
    num_members: int = members_field()

    @property
    def upper_bound(self) -> str:
        """No server of a run holds the pool of the shadow models, which is also another budget than that of offline attacks."""
        return "shadow models train on the client's members and the scored non-members"

    @property
    def scoring(self) -> str:
        """One of ``attacks.membership.online_rules.RULES``."""
        raise NotImplementedError

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Make the test from the client's own model and a seed."""
        seed = seed_of(generator, 31)
        online = OnlineTest(self.scoring, self.num_shadows, self.num_members, seed)
        return Membership(local_model(observation), online=online)


@algorithm
class OnlineLiRA(OnlineAttack):
    """Score a record by the likelihood ratio of its confidence under models with it and under models without it.

    The signal is the logit-scaled confidence in the true class. Both likelihoods are Gaussian.

    Attributes:
        variance: "each": means and variances of each record, which needs many shadow models. "fixed": the means of each record, one
            variance for all records with, and one for all without. "shrunk": as of ``LiRA``, with one prior for each of the two
            Gaussians; the likelihoods are those of Student's t.
    """

    source = "Carlini et al. 2022, algorithm 1 (online); variance='shrunk': Brännvall 2026 (BaVarIA), Smyth 2004, section 6.2"

    variance: str = choice_field("shrunk", ("shrunk", "fixed", "each"))

    @property
    def scoring(self) -> str:
        """The estimate of the variance."""
        return self.variance


@algorithm
class OnlineRMIA(OnlineAttack):
    """Score a record by its probability under the client's model, over its mean probability under models with and without it.

    The mean probability is half the mean under models with the record, plus half the mean under models without it.

    The paper counts the population records that the record dominates by a factor. That share rises with the ratio alone, so that
    the ratio orders records in the same way, without a population.
    """

    source = "Zarifzadeh, Liu, Shokri 2024, section 3 and online RMIA"

    @property
    def scoring(self) -> str:
        """The ratio."""
        return "ratio"
