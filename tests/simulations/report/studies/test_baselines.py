from itertools import combinations

from simulations.report import Row
from simulations.report.studies.baselines import names_members
from strategies.audit.threat_card import ThreatCard

OTHERS = 100


def rate(count: int, members: int, **given: object) -> Row:
    card = ThreatCard(observation="training update", members=members, others=OTHERS)
    known = {"metric": "membership-tpr", "attack": "A()", "round": 1, "n": members + OTHERS, "value": count / members}
    return Row(**(known | {"card": card} | given))


def test_members_are_named_where_few_orders_of_like_records_would_do_as_well() -> None:
    for members in (2, 3):
        # Member number i (from 0) at place p, from the highest, has p - i others before it.
        orders = combinations(range(members + OTHERS), members)
        found = [sum(place - i <= 1 for i, place in enumerate(places)) for places in orders]
        for count in range(members + 1):
            luck = sum(one >= count for one in found) / len(found)
            assert names_members(rate(count, members)) == (luck <= 0.025), (count, luck)
        assert [names_members(rate(count, members)) for count in (0, members)] == [False, True]
    update = ThreatCard(observation="training update")
    for given in ({"status": "failed"}, {"card": update}, {"metric": "membership-auc"}):
        assert not names_members(rate(3, 3, **given)), "a failed row or one without counts names no member"
