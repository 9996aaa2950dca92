"""The report's section on edge-cloud inference: accuracy of the answers, cost of the messages, and recovery from them."""

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from attacks.metrics import training
from attacks.metrics.images import MS_SSIM, MS_SSIM_SUCCESS, PSNR
from simulations.report import columns
from simulations.report.analysis.finding import Finding
from simulations.report.columns import DEFENCE, Column, Show, Shown, Table, averaged, number, over_interval
from simulations.report.section import Content, OwnPictures, Section
from simulations.report.sections.inference.cut import NOT_SATISFIED, SATISFIED, Adversary, Cut
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import NOTHING, dagger, decibel, percent, percentage, plain, size, two

MASKS = {"delta masks": ("image", "server-cam", "adversary-cam", "mask", "masked")}
"""What the index of pictures calls those of delta masks, and their kinds in the order of their making."""
EQUATION = """Equation 1 of the paper asks that the server's accuracy stays (S&alpha; &asymp; S&beta;) while the adversary's falls
by much more; it names no numbers. Here it is satisfied where the adversary lost at least 10 percentage points and the server's
accuracy changed by at most 4 points, about what the paper reports, and at most by half of what the adversary lost, whatever lies
within the 95 % intervals of both differences. The adversary's loss is from the best of its kind without protection to the best
with it. Guesses of two values that are wrong in more than half of the cases count as their opposites. It is not satisfied where
nothing within these intervals meets that. It is undecided otherwise, and where the adversary is not validated on unprotected
features."""
UNTESTED = """No adversary was retrained on protected features, as a server that knows the defence would: no verdict here is
tested against that."""
HOW_TO_READ = """“a → b” is before and after protection, small print the 95 % interval of b. Each client asks about all of its
test images, once. An answer is unchanged where its most likely class is the one that the whole model sees in the clean image. The
static adversary learned from unprotected features, as in the paper; the retrained one from features that the clients' own
algorithm protected, and is what a defence has to be judged by. Where the retrained one learned nothing, or reads no more than the
static one, it was trained too little to say that a defence hides anything. Its accuracy stands beside that of always answering
the most frequent value."""
RECONSTRUCTED = """Every score is against the original, before protection that of the best reconstruction. The server knows the
client half, which it trained itself, the defences, and what they have learned; it sees each query once. The mean image of the
true class is what an attacker that knows the class can guess, and the server knows the class from its own answer. A
reconstruction with an MS-SSIM above 0.35 counts as a success in the paper; small images have fewer scales than its five, and what
a guess reaches that looks at nothing is the null."""
MADE_AGAINST = "The adversary that masks are made against (offline) reads {} of held-out images of the server's own."
TOO_FEW = "With so few, Equation 1 cannot be satisfied, whatever an adversary reads."
ENOUGH = """With so many, Equation 1 can be satisfied only where the adversary reads at least {} before protection: a smaller
drop, to the most frequent value, is not 10 points with its whole interval."""
MASKED = """Images of the server's own; where the server half finds its class and where the adversary finds the attribute (red is
most), the mask, and what is left of the image. The autoencoder learns to answer as if every image had been masked."""
COUNTED = """The client half counts with what its defences have learned; a device is given both once. Seconds are those of all
queries of a client, mean over clients, and of all queries at the server."""


def edge_cloud_inference(study: Study, lines: Sequence[Finding]) -> Content | None:
    """Answers, adversaries, reconstructions and costs at one cut, or None for a study without queries."""
    if not any(row.metric == training.QUERY_BYTES.name for row in study.rows):
        return None
    cut = Cut(study)
    costs = (
        DEFENCE,
        averaged(study, "queries", training.QUERIES, plain).opening,
        averaged(study, "bytes of an answer", training.ANSWER_BYTES, size),
        averaged(study, "bytes of the client half", training.CLIENT_HALF_BYTES, size).opening,
        averaged(study, "seconds of a client", training.QUERY_SECONDS, plain),
        averaged(study, "seconds of the server", training.ANSWER_SECONDS, plain),
    )
    parts = [*_judged(cut), _answers(cut, lines), *_power(cut), HOW_TO_READ, OwnPictures("What is masked", MASKED)]
    return Content([*parts, *_queries(cut), Table("What the service costs", costs, lines, how="h3"), COUNTED])


def _judged(cut: Cut) -> list[str]:
    if not (cut.adversaries and any(cut.study.pipelines)):
        return []
    retrained = any(adversary.cell.card.knows_defenses for adversary in cut.adversaries)
    return [Markup(f'<p class="soft small after">{EQUATION} {"" if retrained else UNTESTED}</p>')]


def _answers(cut: Cut, lines: Sequence[Finding]) -> Table:
    def read(line: Finding, retrained: bool) -> Shown | None:
        adversary = cut.adversary(line.defense, retrained)
        if adversary is None:
            return None
        shown = _change(None if retrained else adversary.before, adversary.after, percentage, line.defense)
        doubt = cut.doubt(line.defense) if retrained else ""
        return replace(shown, below=("; ".join(filter(None, (*shown.below, doubt))),))

    def often(line: Finding) -> str:
        adversary = cut.adversary(line.defense, True) or cut.adversary(line.defense, False)
        return percentage(adversary.null if adversary else None)

    inferred = (
        number("static adversary", lambda line: read(line, False)).opening,
        number("retrained adversary", lambda line: read(line, True)),
        number("most frequent value", often),
        Column("static", lambda line: _verdict(cut.adversary(line.defense, False))).opening,
        Column("retrained", lambda line: _verdict(cut.adversary(line.defense, True))),
    )
    shown = (
        DEFENCE,
        number(
            "accuracy as deployed, %", lambda line: _change(*cut.server(line.defense), percentage, line.defense)
        ).opening,
        number(
            "answers unchanged, %", lambda line: over_interval(cut.score(line.defense, training.AGREEMENT), percentage)
        ),
        *(inferred if cut.adversaries else ()),
        averaged(cut.study, "bytes of a query", training.QUERY_BYTES, size).opening,
        averaged(cut.study, "of plain features", training.FEATURE_BYTES, size),
    )
    groups = ("", "Server half", "Sensitive attribute, accuracy, %", "Equation 1", "What travels")
    title = f"Cut at {cut.study.cut}" if cut.study.cut else "Answers"
    return Table(title, shown, lines, groups if cut.adversaries else (), how="h3")


def _change(before: Score | None, after: Score | None, show: Show, defense: str = "") -> Shown:
    """A score before and after protection, with the interval of the latter; where nothing is protected, the one there is."""
    was = Markup('<span class="soft">{} →</span> ').format(show(before.mean)) if defense and before else Markup("")
    if after is None:
        return Shown(was + NOTHING)
    return Shown(was + show(after.mean) + dagger(after.status), (after.within(show),))


def _verdict(adversary: Adversary | None) -> Shown:
    word = adversary.equation if adversary else ""
    mood = {SATISFIED: "good", NOT_SATISFIED: "bad"}.get(word, "")
    return Shown(Markup('<span class="status {}">{}</span>').format(mood, word or NOTHING))


def _power(cut: Cut) -> list[str]:
    sentences = [MADE_AGAINST.format(percent(cut.offline.mean))] if cut.offline else []
    if cut.threshold:
        images, null, least = cut.threshold
        often = f"Of {images} images {percent(null)} have the most frequent value."
        sentences.append(f"{often} {TOO_FEW if least is None else ENOUGH.format(percent(least))}")
    return sentences


def _queries(cut: Cut) -> list[Table | str]:
    first = cut.best_reconstruction

    def change(heading: str, of: Scored, show: Show) -> Column:
        def read(cell: Cell) -> Shown:
            return _change(first.scores.get(of) if first else None, cell.scores.get(of), show, cell.defense)

        return number(heading, read)

    def null(cell: Cell) -> Shown:
        (name, value), of_class = cell.best_null or ("", None), cell.scales.get("class-mean")
        return Shown(decibel(value), (name, f"of its class {decibel(of_class)}" if of_class is not None else ""))

    similar = MS_SSIM.of("original")
    shown = (
        *columns.ATTACKED,
        change("PSNR, dB", PSNR.of("original"), decibel).opening,
        number("best null", null),
        columns.OF_SSIM,
        change("MS-SSIM", similar, two).opening,
        number("null", lambda cell: two(cell.null(similar))),
        change("above 0.35, %", MS_SSIM_SUCCESS.of(), percentage),
        columns.IDENTIFIED.opening,
    )
    return (
        [Table("What comes back out of the queries", shown, cut.queried, how="h3"), RECONSTRUCTED]
        if cut.queried
        else []
    )


SECTION = Section(
    "inference",
    "Edge-cloud inference",
    edge_cloud_inference,
    text="""A cloud trains a classifier on images of its own. Clients hold the lower half, send the features of their private
    images, and the cloud answers.""",
    deployed_on=" or features",
    pictures_show="what entered the client half; what a defence does to its features does not show in it",
    own_pictures=MASKS,
)
