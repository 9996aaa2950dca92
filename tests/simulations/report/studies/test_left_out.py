"""What a verdict would be without one of the clients that scored it."""

import json
from dataclasses import replace

from attacks.metrics.images import FLAT_PSNR, IDENTIFIED, IDENTIFIED_CHANCE, PLACE, PSNR, STRUCTURE
from attacks.metrics.names import Scores
from simulations.report import Row, validate
from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.message import Verdict
from simulations.report.studies.cell import FOUND, SEEN
from simulations.report.studies.study import Study, left_out, split
from strategies.audit.score_rows import rows_of_clients, score_rows
from tests.simulations.report.report_run import PROBE

READ, LOST = (30.0, 1.0, 0.9), (8.0, 0.0, 0.1)
"""Of each of a client's four images: PSNR, whether it is identified, and similarity in structure."""


def scores(client: tuple[float, float, float]) -> Scores:
    names = (PSNR.of("original"), IDENTIFIED.of("original"), STRUCTURE.of("original"))
    beside = {FLAT_PSNR.of(): [12.0] * 4, IDENTIFIED_CHANCE.of(): [0.01] * 4, PLACE.of(): [0.0, 1.0, 2.0, 3.0]}
    return {name: [value] * 4 for name, value in zip(names, client, strict=True)} | beside


def rows(*clients: tuple[float, float, float], unscored: int = 0, defense: str = "") -> list[Row]:
    """What one attack writes that these clients scored."""
    known = {"attack": "A()", "round": 1, "defense": defense}
    made = rows_of_clients(score_rows, dict(enumerate(map(scores, clients))), PROBE, unscored)
    fields = Row.__dataclass_fields__.keys()
    return [
        Row(**known, **{k: v for k, v in one.items() if k in fields}, extra={k: one[k] for k in one.keys() - fields})
        for one in made
    ]


def line(found: list[Row]) -> Finding:
    """The last of its lines."""
    return findings_of(split(validate(found), ["", "D()"])[0], {})[-1]


def test_a_verdict_names_the_clients_that_it_hangs_on() -> None:
    sure, alone = line(rows(READ, READ, READ, READ)), line(rows(LOST, LOST, READ, LOST))
    assert [one.messages[0].verdict for one in (sure, alone)] == [Verdict.RECOGNISABLE] * 2
    assert sure.strongest is not None
    assert sure.strongest.clients == 4
    assert not [caveat for caveat in sure.all_caveats if "hangs" in caveat]
    (caveat,) = (one for one in alone.all_caveats if "hangs" in one)
    assert "this verdict (recognisable) hangs on one client: without client 2 it is unknown" in caveat


def test_images_of_one_client_that_nobody_scored_make_no_verdict_too_small() -> None:
    """12 of 16 attacked images suffice to say that nothing was found; 8 of 16 do not."""
    for clients, unscored, expected in ((3, 4, Verdict.NOTHING), (3, 0, Verdict.UNKNOWN), (2, 8, Verdict.UNKNOWN)):
        found = line([*rows(*[READ] * 4), *rows(*[LOST] * clients, unscored=unscored, defense="D()")])
        assert found.messages[0].verdict is expected, (clients, unscored)
        assert found.messages[0].found == (0, 4 * clients)


def test_a_cell_without_a_client_is_that_of_a_study_whose_rows_lack_it() -> None:
    seeds = [
        replace(row, seed=at) for at, of in enumerate(((READ, LOST, READ), (LOST, READ, LOST))) for row in rows(*of)
    ]
    (study,) = split(validate(seeds), [""])
    for name, without in left_out(study).items():
        client, seed = name.split()[1], int(name.split()[-1])
        changed = []
        for row in seeds:
            other = row.extra.get("without_client", {}).get(client, {}) if row.seed == seed else {}
            data = json.loads(row.line)
            changed.append(Row.from_json(data | other | {"card": data["card"] | other.get("card", {})}))
        expected = Study(study.name, tuple(validate(changed)), study.pipelines).cells
        for of, one in zip(expected, map(without, study.cells), strict=True):
            assert one, name
            assert (one.count(FOUND), one.count(SEEN), one.chances) == (of.count(FOUND), of.count(SEEN), of.chances)
            assert one.status == of.status
