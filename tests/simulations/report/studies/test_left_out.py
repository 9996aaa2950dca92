"""What a verdict would be without one of the clients that scored it."""

from dataclasses import replace
from typing import Any

from attacks.metrics.images import PSNR, RETRIEVAL, RETRIEVAL_CHANCE
from attacks.metrics.names import Role, Scores
from simulations.report import Row, validate
from simulations.report.analysis.readability import Readability, readability
from simulations.report.analysis.summary import summarise
from simulations.report.studies.study import Study, split
from strategies.audit.score_rows import rows_of_clients, score_rows
from tests.simulations.report.report_run import PROBE

READ, LOST = ([28.0, 30.0, 31.0, 33.0], 1.0), ([7.0, 7.5, 8.0, 8.5], 0.0)
"""PSNR of a client's images, and whether each is identified."""


def scores(client: tuple[list[float], float]) -> Scores:
    psnr, hit = client
    return {PSNR.of("original"): psnr, RETRIEVAL.of("original"): [hit] * 4, RETRIEVAL_CHANCE.of(): [0.01] * 4}


def study(*clients: tuple[list[float], float], unscored: int = 0) -> Study:
    """The study of one attack on the undefended run, scored by these clients."""

    def rows(of: dict[int, Scores], **fields: Any) -> list[Row]:
        found = rows_of_clients(score_rows, of, PROBE, unscored)
        known = set(Row.__dataclass_fields__)
        return [
            Row(
                **fields,
                **{k: v for k, v in one.items() if k in known},
                extra={k: v for k, v in one.items() if k not in known},
            )
            for one in found
        ]

    grey = {at: {PSNR.of("original"): [8.0, 8.1, 8.2, 8.3]} for at in range(len(clients))}
    of_attack = rows(dict(enumerate(map(scores, clients))), attack="A()", seed=0)
    found = [*of_attack, *rows(grey, attack="grey", role=Role.NULL_BASELINE, seed=0)]
    (one,) = split(validate([replace(row, round=1) for row in found]), [""])
    return one


def test_a_verdict_names_the_clients_that_it_hangs_on() -> None:
    (sure,) = summarise(study(READ, READ, READ, READ), {})
    assert sure.strongest is not None
    assert (readability(sure.strongest), sure.strongest.clients) == (Readability.READABLE, 4)
    assert not [caveat for caveat in sure.all_caveats if "hangs" in caveat]
    (alone,) = summarise(study(LOST, LOST, READ, LOST), {})
    assert alone.strongest is not None
    assert readability(alone.strongest) is Readability.PARTLY
    (caveat,) = (one for one in alone.all_caveats if "hangs" in one)
    assert caveat.startswith("this verdict (partly readable, ")
    assert "without client 2 unknown, not validated" in caveat


def test_images_of_one_client_that_nobody_scored_make_no_verdict_too_small() -> None:
    """12 of 16 attacked images suffice, with the interval of 12; 8 of 16 do not."""
    for clients, unscored, expected in (
        (3, 4, Readability.READABLE), (3, 0, Readability.UNKNOWN), (2, 8, Readability.UNKNOWN),
    ):  # fmt: skip
        (line,) = summarise(study(*[READ] * clients, unscored=unscored), {})
        assert line.strongest is not None
        assert readability(line.strongest) is expected, (clients, unscored)
        assert line.strongest.recovered == (4 * clients, 4 * clients)
