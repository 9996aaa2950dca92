"""The report's section on split learning: the client's cost under each defence, and recovery from the smashed data."""

from collections.abc import Sequence
from itertools import zip_longest

from markupsafe import Markup

from attacks.metrics import images, training
from attacks.metrics.guesses import CELLS_RIGHT, COLUMN, LABEL_ACCURACY, MSE_EMBEDDING
from attacks.metrics.metric import IMAGES, Metric
from attacks.metrics.names import Role
from attacks.metrics.registry import metric_of
from simulations.report import columns
from simulations.report.analysis.finding import Finding
from simulations.report.columns import Column, Show, Shown, Table, averaged, number, over_interval, scored
from simulations.report.section import Content, Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from simulations.report.text import amount, brief, count, decibel, percentage, plain, power_of_ten, size, two
from simulations.run_folder.rows import Row
from strategies.split.observations import SMASHED

SHOWN = frozenset(metric.name for metric in training.SPLIT)
FACTS = ("transmissions_used", "auxiliary_data", "client_half_update")
"""Settings of a threat card by which attacks on smashed data differ; what an upper bound was given stands beside the attack."""
RIGHT, ERROR = CELLS_RIGHT.of(), MSE_EMBEDDING.of()
COUNTED = """MCC is Matthews' correlation of the classes: 0 is guessing, 1 is perfect. MACs (multiply-accumulates) and memory
(parameters, activations and gradients of one image, or of as many as the small print says) are counted, not timed; images per
second are wall-clock time, and depend on whatever else this machine did."""
ORDERS = """Orders left open count the sequences in which one shuffled batch could have been sent, and the share of them in which
an image keeps its own tokens in one given order. They count what a shuffle hides, and no more: the multiset of tokens stays
visible, so they bound no attack; how far attacks get that solve the puzzle is in the table of attacks, where there is one."""
CONVENTION = """<p class="soft small after">The paper's convention (Yao et al., ICDM 2022: images as they enter the network, a
peak of 1{}) is for comparison with its tables only. The oracle is a classifier trained on clean data. Identified is the share of
reconstructions whose nearest true image of those attacked together, to the oracle, is their own; feature similarity is the cosine
to it there. Attacks that guess labels alone are with all attacks.</p>"""
ROWS = """A cell is right when its category is named for its own column. The baseline names every column's most frequent category
among the client's own training rows. AUC is the area under the ROC curve, of pairs within a client; log-loss is in nats, and both
are of the model as deployed."""


def split_learning(study: Study, lines: Sequence[Finding]) -> Content | None:
    """Costs, attacks on images and on rows of a table; None for a study without any number about split learning."""
    cells = [cell for cell in study.cells if _on_smashed_data(cell)]
    if not cells and not any(row.metric in SHOWN and row.role is Role.TRAINING for row in study.rows):
        return None
    of_images = [cell for cell in cells if RIGHT not in cell.scores]
    of_tables = [cell for cell in study.cells if cell.observation == SMASHED.title and RIGHT in cell.scores]
    differing, numbers = columns.Cards(cells).differing, columns.Cards(study.cells)
    parts = _costs(study, lines)
    if of_images:
        parts += _of_images(of_images, [key for key in FACTS if key in differing], numbers)
    return Content(parts + (_of_tables(study, lines, of_tables, numbers) if of_tables else []))


def _on_smashed_data(cell: Cell) -> bool:
    """Attacks that guess labels alone have no score of this section; one that failed belongs here like those that did not."""
    return cell.observation == SMASHED.title and (
        LABEL_ACCURACY.of() not in cell.scores or any(metric_of(name).family is IMAGES for name, _ in cell.scores)
    )


def _deployed(study: Study, lines: Sequence[Finding], heading: str, metric: Metric, show: Show) -> Column:
    """A metric of the model as deployed, in the round of the accuracy of a row's defence."""
    of = {line.defense: line for line in lines}

    def read(row: Finding | Cell) -> Shown | None:
        line = of[row.defense]
        series = study.series(line.defense, metric.name, "transformed" if line.accuracy.protected else "original")
        return over_interval(series.get(-1 if line.accuracy.round is None else line.accuracy.round), show)

    return number(heading, read)


def _costs(study: Study, lines: Sequence[Finding]) -> list[Table | str]:
    def rows(line: Finding, metric: Metric) -> list[Row]:
        return [row for row in study.rows if (row.defense, row.attack, row.metric) == (line.defense, "", metric.name)]

    def memory(line: Finding) -> Shown:
        peak = study.over_rounds(line.defense, training.EDGE_PEAK_BYTES.name)
        held = max((row.n for row in rows(line, training.EDGE_PEAK_BYTES)), default=1)
        return Shown(size(peak), (count(held, "image") if held > 1 else "",), peak)

    def lost(line: Finding) -> Shown:
        arrived = [(row.value, row.n) for row in rows(line, training.BATCHES_LOST) if row.value is not None]
        batches, expected = sum(value for value, _ in arrived), sum(n for _, n in arrived)
        return Shown(plain(batches if arrived else None), (f"of {expected}" if expected else "",))

    def orders(line: Finding, at: int) -> str | None:
        # Shuffles in a row have one pair each, which must not be averaged; seeds repeat the same pair.
        both = ([row.value for row in rows(line, of)] for of in (training.LOG10_ORDERS, training.LOG10_TARGET_SHARE))
        return ", ".join(power_of_ten(pair[at]) for pair in dict.fromkeys(zip_longest(*both))) or None

    shown = (
        columns.OF_LINE,
        number("accuracy, %", columns.DEPLOYED.show).opening,
        _deployed(study, lines, "MCC micro", training.MCC_MICRO, two),
        _deployed(study, lines, "MCC macro", training.MCC_MACRO, two),
        averaged(study, "parameters", training.EDGE_PARAMETERS, amount).opening,
        averaged(study, "MACs per image", training.EDGE_MACS, amount),
        averaged(study, "in training", training.EDGE_TRAINING_MACS, amount),
        number("peak memory", memory),
        averaged(study, "sent per image", training.BYTES_PER_SAMPLE, size).opening,
        averaged(study, "images per second", training.SAMPLES_PER_SECOND, plain),
        number("batches lost", lost),
        number("orders left open", lambda line: orders(line, 0)).opening,
        number("share with the target", lambda line: orders(line, 1)),
    )
    table = Table("Costs", shown, lines, ("", "As deployed", "Client half", "Traffic", "Shuffles"))
    return [table, f"{COUNTED} {ORDERS}" if any(rows(line, training.LOG10_ORDERS) for line in lines) else COUNTED]


def _of_images(cells: Sequence[Cell], facts: Sequence[str], numbers: columns.Cards) -> list[Table | str]:
    def identified(cell: Cell) -> Shown | None:
        # By features, among the true images attacked together.
        chance = 1 / cell.card.images if cell.card.images else None
        return columns.share(cell.scores.get(images.IDENTIFICATION.of()), chance=chance)

    def fact(key: str) -> Column:
        return Column(key.replace("_", " "), lambda cell: cell.fact(key) or None)

    first, *others = (*map(fact, facts), columns.card(numbers))
    shown = (
        *(*columns.ATTACKED, columns.OF_PSNR.opening, columns.OVER_NULL, columns.OF_SSIM),
        scored("paper PSNR, dB", images.PSNR_PAPER.of(), decibel).opening,
        scored("paper SSIM", images.SSIM_PAPER.of(), two),
        number("paper MSE", lambda cell: brief(cell.mean(images.MSE_PAPER.name))),
        number("identified", identified).opening,
        number("recognised", columns.recognised),
        scored("feature similarity", images.FEATURE_SIMILARITY.of(), two),
        *(first.opening, *others),
    )
    groups = ("", "Against the original", "Paper's convention", "Oracle", "Threat")
    scales = dict.fromkeys(filter(None, (cell.fact("paper_convention") for cell in cells)))
    note = Markup(CONVENTION).format("".join(f"; here {scale}" for scale in scales))
    return [Table("Attacks on smashed data", shown, cells, groups, how="h3"), note]


def _of_tables(
    study: Study, lines: Sequence[Finding], cells: Sequence[Cell], numbers: columns.Cards
) -> list[Table | str]:
    shown = (
        *columns.ATTACKED,
        scored("cells right, %", RIGHT, percentage).opening,
        number("most frequent, %", lambda cell: percentage(cell.null(RIGHT))),
        scored("MSE of embeddings", ERROR, two).opening,
        number("mean embedding's", lambda cell: two(cell.null(ERROR))),
        _deployed(study, lines, "AUC", training.TEST_AUC, two).opening,
        _deployed(study, lines, "log-loss", training.TEST_LOSS, two),
        columns.card(numbers).opening,
    )
    return [Table("Attacks on rows of a table", shown, cells, how="h3"), *map(_by_column, cells), ROWS]


def _by_column(cell: Cell) -> Table:
    shown = (
        Column("Column", lambda key: key[0].removeprefix(COLUMN.name)),
        number("share right, %", lambda key: over_interval(cell.scores[key], percentage)),
        number("most frequent category, %", lambda key: percentage(cell.null(key))),
    )
    title = f"{cell.defense or 'No defence'}: columns as {cell.attack} read them, {columns.round_of(cell)}"
    return Table(title, shown, [key for key in cell.scores if key[0].startswith(COLUMN.name)], how="folded")


SECTION = Section(
    "split",
    "Split learning",
    split_learning,
    text="""Clients hold the first part of the model and send the tokens of every image, the smashed data; the server trains the
    rest on them.""",
    deployed_on=" or tokens",
    pictures_show="what entered the client half; what a defence does to its tokens does not show in it",
)
