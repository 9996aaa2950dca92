"""Adaptive attacks of a pipeline: attacks made against its defences, which run by default."""

from collections.abc import Sequence

from attacks.base import AnyAttack
from attacks.refinement.base import Chain, Refinement
from attacks.spec import ATTACKS
from defenses.pipeline import Pipeline
from strategies.audit.kinds import Kind


def adaptive_attacks(
    pipeline: Pipeline,
    pipelines: Sequence[Pipeline],
    chosen: Sequence[AnyAttack],
    kind: Kind,
    tables: bool = False,
    *,
    in_turn: bool = False,
) -> list[AnyAttack]:
    """A pipeline's adaptive attacks on one kind of observation, with their default settings.

    A chosen attack (``chosen``) is not added again, unless its settings make it ignore the defences: a static adversary is no
    evidence about an adaptive one. If any pipeline has a defence, a chosen attack that knows none gets a version that does
    (``Attack.aware``), with the same settings. A refinement follows the first chosen attack that returns images, which costs
    little; where attacks run ``in_turn`` (see ``AttackJob``), each of them, of which most find nothing to refine. The pipeline
    without a defence gets the other pipelines' attacks, except refinements, as their positive control.
    ``tables``: examples are rows of a table, not images.
    """
    names = pipeline.adaptive_attacks
    controls = not pipeline.defenses
    if controls:
        names = tuple(dict.fromkeys(name for each in pipelines for name in each.adaptive_attacks))
    starts = [attack for attack in chosen if attack.profile.begins_chains][: None if in_turn else 1]
    added: list[AnyAttack] = []
    if any(each.defenses for each in pipelines):
        added += [attack.aware() for attack in chosen if attack.aware() not in chosen]
    for name in names:
        attack = ATTACKS[name]()
        if (
            not (kind.meant(attack) or (in_turn and isinstance(attack, Refinement)))
            or not reads(attack, tables)
            or (type(attack), attack.knows_defenses) in [(type(old), old.knows_defenses) for old in [*chosen, *added]]
        ):
            continue
        if not isinstance(attack, Refinement):
            added.append(attack)
        elif not controls:
            added += [Chain((start, attack)) for start in starts]
    return added


def adaptive_names(pipeline: Pipeline, kinds: Sequence[Kind], tables: bool = False) -> list[str]:
    """Names of a pipeline's adaptive attacks that can run where the server sees these kinds of observations, of such examples."""
    fitting = (name for name in pipeline.adaptive_attacks if reads(ATTACKS[name](), tables))
    return [name for name in fitting if any(kind.meant(ATTACKS[name]()) for kind in kinds)]


def reads(attack: AnyAttack, tables: bool) -> bool:
    """Whether an attack suits the examples: rows of a table, or images."""
    return ("tables" if tables else "images") in attack.profile.data
