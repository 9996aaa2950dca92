"""One careful sentence about a defence: what the strongest attack recovered, compared with its baselines."""

from __future__ import annotations

from collections.abc import Iterator

from attacks.metrics.metric import ATTRIBUTES, CELLS, IMAGES, Family
from simulations.report.analysis.adaptive import apart, stand_ins
from simulations.report.analysis.line import Line
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.recovery import BestImage
from simulations.report.studies.score import Score
from simulations.report.text import brief, capital, count, decibel, numbered, percentage, round_name, within

CHANCE_AMONG_100 = 0.0101
"""Highest chance of a null guess among all candidates: 99 others for each true image."""


def sentence(line: Line) -> str:
    """The headline of one defence, without its name: what the strongest attack recovered, and its baselines.

    Where the scenario knows one-step probes, this is said of them and of the updates that training sends, each with its interval.
    Where another attack holds the best-recovered image or the image with the highest PSNR, it is named.

    Never says that something is private: an attack that fails shows only that this attack fails.
    """
    return " ".join([_sentence(line), *_by_others(line)])


def _by_others(line: Line) -> Iterator[str]:
    """What attacks that are not of the headline did better on a single image: nothing of that is hidden."""
    leading, highest, best = line.leading, line.highest_image, line.best_image
    better = line.better_image(leading) if leading else None
    if better is not None and better.best is not None:
        yield f"The best-recovered image of all attacks is by {called(better)}: {gained(better.best)}."
    shown = [cell.psnr.worst for cell in leading if cell.psnr and cell.psnr.worst is not None]
    shown += [best.best.psnr] if best and best.best else []
    height = highest.psnr.worst if highest and highest.psnr else None
    if highest and height is not None and shown and height > max(shown):
        yield f"The highest PSNR of an image, recovered or not, is by {called(highest)}: {decibel(height)} dB."


def called(cell: Cell) -> str:
    """An attack by its name, round and observation."""
    return ", ".join(filter(None, [cell.attack, round_name(cell.round, cell.final), cell.observation]))


def gained(best: BestImage) -> str:
    """The PSNR of a recovered image and its gain over the null baselines."""
    own = "" if best.detail is None else f" and {decibel(best.detail)} dB above its own mean colour"
    return f"{decibel(best.psnr)} dB, {decibel(best.gain)} dB above the best null baseline for it{own}"


def _sentence(line: Line) -> str:
    """What is said of the strongest attack, or why nothing is."""
    best = line.strongest
    if line.reading is not None:
        return f"the strongest attack {_read(line.reading)}."
    if best is None and line.attributes is not None:
        return f"the strongest attack {_guessed(line.attributes)}."
    if best is None or best.psnr is None or best.psnr.mean is None:
        if line.cells:
            return "no attack on the images has a score, so nothing is known about them."
        if line.bounds:
            return f"only attacked by what no server can do ({'; '.join(line.bounds)}), which says nothing of one that can."
        if line.apart:
            return f"attacked only {' and '.join(line.apart)}, which sections of their own describe."
        return "not attacked yet."
    of_images = f"{_observed(line, best)}."
    if line.attributes is None:
        return of_images
    return f"{of_images} Of {ATTRIBUTES.attacked} the strongest attack {_guessed(line.attributes, '')}."


def _observed(line: Line, best: Cell) -> str:
    """What the strongest attack did, on probes and on real updates where these are told apart."""
    if line.strongest not in (line.probe, line.update):
        return _recovered(line, best)
    parts = [f"{_seen(cell)}: {_recovered(line, cell)}" for cell in line.leading]
    if line.update is None:
        why = "no attack has a score of their images" if apart(line.cells)[1] else "not attacked"
        parts.append(f"real updates: {why}")
    return ". ".join(capital(part) for part in parts)


def _seen(cell: Cell) -> str:
    """What was attacked; of a real update with its size and the search, as "training update of 4 steps on 64 images"."""
    steps, images = cell.card.local_steps, cell.card.images
    if cell.observation in stand_ins():
        return cell.observation
    length = f" of {count(steps, 'step')}" if steps is not None else ""
    size = f" on {count(images, 'image')}" if images is not None else ""
    return f"{cell.observation}{length}{size}{_effort(cell)}"


def _effort(cell: Cell) -> str:
    """Describe the search budget: without it a failed attack proves little. "" for an attack that does not search."""
    iterations, restarts = (cell.card.more.get(name) for name in ("iterations", "restarts"))
    if not isinstance(iterations, int):
        return f", searched by {iterations}" if iterations else ""
    starts = f" from each of {restarts} starts" if isinstance(restarts, int) and restarts > 1 else ""
    return f", searched by {count(iterations, 'iteration')}{starts}"


def _recovered(line: Line, cell: Cell) -> str:
    """What an attack on the images did: how many it recovered, then its PSNR."""
    score = cell.scores[IMAGES.decides]
    if score.all_failed:
        return f"the attack failed on all {score.n} images, so nothing is known about them"
    counts = _share(line, cell) if cell.recovered else _identified(cell)
    first = f"the strongest attack {counts}" if counts else ""
    height = f"{'its' if counts else 'of the strongest attack the'} mean PSNR is {_height(cell, score)}"
    best = f"its best-recovered image: {gained(cell.best)}" if cell.best else ""
    parts = filter(None, [first, height, best, _wanting(cell)])
    return ". ".join(capital(part) if at else part for at, part in enumerate(parts))


def _share(line: Line, cell: Cell) -> str:
    """The count of recovered images with its interval, and the chance of as many."""
    assert cell.recovered is not None
    recovered, n = cell.recovered
    share = cell.share
    details = []
    if share:
        details += [f"95 % interval {within(*share.ends, percentage)} %"] if share.ends else []
        details += _seeds(line, share)
    if cell.detailed is not None and cell.detailed < recovered:
        details.append(f"{cell.detailed or 'none'} of them above their own mean colour")
    if recovered and (chance := line.chance_of_as_many(cell)) is not None:
        of = "one null guess" if len(line.tried) == 1 else f"the best of {len(line.tried)} null guesses"
        details.append(f"chance of as many by {of}: at most {brief(chance)}")
    # Of a round, an attack may guess fewer images than trained.
    what = "guessed image" if cell.observation in stand_ins().values() else "image"
    shown = f"recovered {recovered} of {count(n, what)}" + (f" ({'; '.join(details)})" if details else "")
    return shown if recovered else " and ".join(filter(None, [shown, _identified(cell)]))


def _seeds(line: Line, share: Score) -> list[str]:
    """Of how many seeds a share is, and of which not: an attack that failed on one of them may lead by the others."""
    scored = {seed for cell in line.tried if cell.psnr for seed in cell.psnr.by_seed}
    own, lost = list(share.by_seed), sorted(scored - share.by_seed.keys())
    if lost:
        return [f"of {numbered('seed', own)} alone, for the attack has no score of {numbered('seed', lost)}"]
    return [f"over {len(own)} seeds"] if len(own) > 1 else []


def _identified(cell: Cell) -> str:
    """How many images were identified, where this says more than the count of recovered ones."""
    if not cell.picked or not cell.chance_of_retrieval:
        return ""
    return f"identified {picked(cell)}{among(cell.chance_of_retrieval)}"


def _height(cell: Cell, score: Score) -> str:
    """The mean PSNR with its interval and failures, against the null baselines."""
    details = []
    if score.ends:
        details.append(f"95 % interval {within(*score.ends, decibel)}")
    if cell.recovered is None:
        seeds = len(score.by_seed)
        details.append(f"n = {score.n}" + (f" over {seeds} seeds" if seeds > 1 else ""))
    details += [f"{count(score.failures, 'failure')} scored as a grey image"] if score.failures else []
    shown = f"{decibel(score.mean)} dB" + (f" ({', '.join(details)})" if details else "")
    if cell.best_null is None:
        return f"{shown}, with no null baseline to compare with"
    if cell.leaks:
        return f"{shown}, above the {cell.best_null[0]} image ({decibel(cell.best_null[1])} dB)"
    return f"{shown}, {_failed(cell, score)}"


def _wanting(cell: Cell) -> str:
    """Why there is no verdict, or why images were not looked for."""
    if cell.unjudged:
        return f"whether that is these very images could not be judged: {cell.unjudged}"
    if cell.too_few:
        return f"these are too few images for a verdict, which needs {LEAST_IMAGES} or more"
    if cell.picked is None and cell.leaks:
        return "no true image was looked for among others"
    return ""


def _read(cell: Cell) -> str:
    """What a score says of the rows of a table."""
    return _shared(cell, CELLS, " of the cells", "row", "each column's most frequent category")


def _guessed(cell: Cell, what: str = f" of the values of {ATTRIBUTES.attacked}") -> str:
    """What a score says of a sensitive attribute."""
    return _shared(cell, ATTRIBUTES, what, "image", "its most frequent value")


def _shared(cell: Cell, of: Family, what: str, one: str, blind: str) -> str:
    """A share of right guesses ``what`` with n in ``one``, beside what the null baseline ``blind`` has right."""
    score = cell.scores[of.decides]
    null = cell.null(of.decides)
    shown = f"{100 * (score.mean or 0):.1f} %{what} (n = {score.n} {one}s"
    # Of one attribute an image has all or nothing.
    shown += f", worst {one} {100 * score.worst:.1f} %)" if of is CELLS and score.worst is not None else ")"
    if score.n < LEAST_IMAGES:
        return f"has right {shown}: too few {one}s for a verdict, which needs {LEAST_IMAGES} or more"
    if null is None:
        return f"has right {shown}; there is no null baseline to compare with"
    against = f"{blind}: {100 * null:.1f} %"
    leaks = of.decides in cell.leaking
    return f"read {shown}, above {against}" if leaks else f"has right {shown}, not clearly above {against}"


def among(chance: float) -> str:
    """The number of candidates for identification, or with few candidates the chance of a null guess."""
    if chance <= CHANCE_AMONG_100:
        return f" among {1 / chance:.3g} candidates"
    return f" (chance: {100 * chance:.3g} %)"


def picked(cell: Cell) -> str:
    """How many true images an attack identified, such as "15 of 16"; "" where identification was not tested."""
    return f"{cell.picked[0]} of {cell.picked[1]}" if cell.picked else ""


def _failed(cell: Cell, score: Score) -> str:
    """How an attack that does not clear its null baselines compares with them."""
    null = cell.best_null
    assert null is not None
    assert score.mean is not None
    grey = cell.nulls.get("grey")
    if grey is not None and score.mean <= grey:
        text = f"no better than a grey image ({decibel(grey)} dB)"
    elif score.mean <= null[1]:
        text = f"no better than the {null[0]} image ({decibel(null[1])} dB)"
    else:
        text = f"not clearly better than the {null[0]} image ({decibel(null[1])} dB)"
    if score.worst is not None and score.worst > null[1] and score.n > 1 and not cell.best:
        text += f"; the highest PSNR of one image is {decibel(score.worst)} dB"
    return text
