"""A page with a few pictures, their delivered copies, and what the defence's adaptive attacks recover, if any ran."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attacks.base import Attack, Knowledge
from attacks.image_measures import psnr
from attacks.observations import AttackError
from attacks.refinement.base import Refinement
from attacks.registry import ATTACKS
from attacks.uploads.base import AsUploaded, UploadedImages
from clients.data.images import DataError
from clients.models.classifiers import build_model
from clients.training.evaluation import place
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from simulations.protect.copies import protect_image
from simulations.protect.identified import Identified
from simulations.protect.manifest import UNTESTED, Manifest
from simulations.protect.pictures import read
from simulations.protect.recognised import Recognised
from simulations.protect.recovered import RULE, count_recovered
from simulations.protect.sources import Pictures
from simulations.protect.window_rule import for_size
from simulations.report import write_page
from simulations.report.drawing.pictures import Strip, Tile
from simulations.report.page.page import render
from simulations.run_folder.drawn import drawn
from simulations.settings.errors import ConfigError

SHOWN = 6
LEAST = SHOWN + 2
"""Pictures of one kind, grey or coloured, that a preview needs: those shown, and 2 to learn from."""
LARGEST = 340
"""Pixels of the longer side of a delivered copy on the page."""
MOST_LEARNED = 400
"""Pictures that attacks learn from: others of the same folder, as they are."""
SIDE = 64
"""Pixels of the attacked pictures where the copies keep their sizes: attacks that learn want one size."""

LOOKING = "looking at the copy"
"""The guess of a server that takes the copy as it is."""


@dataclass(frozen=True)
class TriedAttacks:
    """What attacks recovered from a few copies.

    Attributes:
        shown: Each picture beside its copy and, where an attack ran, the best guess.
        recovered: Attack -> how many pictures it recovered (``recovered.RULE``); ``LOOKING`` is first, then the attacks that ran.
        missing: The attacks that did not run, those of one reason together with it.
    """

    shown: tuple[Strip, ...] = ()
    recovered: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def ran(self) -> tuple[str, ...]:
        """The attacks that ran on the copies."""
        return tuple(name for name in self.recovered if name != LOOKING)

    @property
    def first(self) -> str:
        """The most important fact, in a sentence."""
        if not self.recovered:
            return UNTESTED
        strongest, most = max(self.recovered.items(), key=lambda one: one[1])
        of = f"{most} of {len(self.shown)} copies"
        if not self.ran:
            return f"A server that only looks at the copies recovers {of}; no other attack ran."
        if strongest == LOOKING and most:
            return f"A server that only looks at the copies recovers {of}; no attack recovered more."
        return (
            f"The strongest attack recovered {of} ({strongest})."
            if most
            else f"No attack recovered a picture from its copy ({of})."
        )

    @property
    def summary(self) -> str:
        """Which attacks ran, or that there is none, in a sentence; "" where ``missing`` says why none ran."""
        if self.ran:
            return f"Attacks that ran: {', '.join(self.ran)}."
        return "" if self.missing else "There is no attack on these defences."


@dataclass(frozen=True)
class Preview(TriedAttacks):
    """Summary of the written page.

    Attributes:
        page: Where; None where no picture has a copy that could be shown.
        scaled: Side in pixels to which pictures were scaled before they were attacked; 0 where the delivered copies were.
    """

    page: Path | None = None
    scaled: int = 0


def require_enough(pictures: Pictures) -> None:
    """Require ``LEAST`` readable pictures of one kind.

    Raises:
        ConfigError: When there are fewer. Of a data set only the number is known before its pictures are written.
    """
    kinds, names = Counter[int](), pictures.names
    if pictures.data is None and len(names) >= LEAST:
        for _, image in _squares(pictures.root, names, SIDE, most=len(names)):
            kinds[image.shape[0]] += 1
            if max(kinds.values()) >= LEAST:
                return
        found = f"{kinds[3]} coloured and {kinds[1]} grey ones that can be read"
    elif len(names) >= LEAST:
        return
    else:
        found = str(len(names))
    raise ConfigError(f"--preview needs at least {LEAST} pictures of one kind, coloured or grey; IN has {found}")


def write_preview(manifest: Manifest, seen: Identified, answers: Recognised, warning: str) -> Preview:
    """Write ``preview.html`` beside the copies, with the measurements and the warning that follows from them."""
    order = manifest.order
    names = sorted(one.source for one in manifest.done.values() if not one.error)
    side = order.size or SIDE
    images = list(_squares(order.root, names, side))
    if not images:
        return Preview()
    counts = Counter(image.shape[0] for _, image in images)
    channels = max(counts, key=lambda number: (counts[number], number))
    # Grey pictures are shuffled as such, and attacks learn from pictures of their own kind: the more common kind is shown.
    images = [(name, image) for name, image in images if image.shape[0] == channels]
    attacked = images[:: max(1, len(images) // SHOWN)][:SHOWN]
    chosen = {name for name, _ in attacked}
    others = [image for name, image in images if name not in chosen][:MOST_LEARNED]
    scaled = for_size(order.pipeline, side, side)
    found = attack(scaled, attacked, others, order.secret)
    made = Preview(found.shown, found.recovered, found.missing, order.out / "preview.html", 0 if order.size else side)
    context = {"title": "Protected pictures", "defense": order.pipeline, "made": made, "rule": RULE}
    context |= {"others": len(others), "seen": seen, "answers": answers, "warning": warning, "largest": LARGEST}
    context |= {
        "windows": manifest.windows,
        "scaled_windows": scaled.at_size(side, side),
        "window_rule": manifest.window_rule,
    }
    context |= {"delivered": delivered(manifest, [name for name, _ in attacked], seen)}
    write_page(order.out / "preview.html", render(BODY, context))
    return made


def delivered(manifest: Manifest, names: list[str], seen: Identified) -> list[Strip]:
    """Each picture beside its copy, read from the delivered file; reduced to ``LARGEST`` pixels by area averages."""
    strips, order = [], manifest.order
    compared = {one.name for one in seen.compared}
    for name in names:
        image, made = (
            read(*of).image for of in ((order.root / name, order.size), (order.out / manifest.done[name].output,))
        )
        height, width = made.shape[1:]
        verdict = f": {'identified' if name in seen.names else 'not identified'}" if name in compared else ""
        tiles = (
            Tile("as it is", name, uri(_fitted(image))),
            Tile(f"delivered copy{verdict}", name, uri(_fitted(made))),
        )
        strips.append(Strip(f"{name}, {width} x {height} pixels", tiles))
    return strips


def _fitted(image: Tensor) -> Tensor:
    height, width = image.shape[1:]
    scale = min(1.0, LARGEST / max(height, width))
    return adaptive_avg_pool2d(image.unsqueeze(0), (max(1, round(height * scale)), max(1, round(width * scale))))[0]


def attack(pipeline: Pipeline, attacked: list[tuple[str, Tensor]], others: list[Tensor], secret: str) -> TriedAttacks:
    """The loss of each picture (name and image (C, H, W), all of one shape) to the strongest attack that knows the defences.

    Attacks may learn from ``others``; none sees the ``secret``, where the draws of the copies start.
    """
    truth = torch.stack([image for _, image in attacked])
    protected = torch.stack([protect_image(pipeline, image, secret) for _, image in attacked])
    labels = torch.zeros(len(truth), dtype=torch.int64)
    observation = UploadedImages(protected, labels)
    stream = generator_for("preview", "attack")
    looked = AsUploaded().attack_many([observation], [stream])[0]
    best, by = [looked.images[at] for at in range(len(truth))], [LOOKING] * len(truth)
    scores, missing = psnr(protected, truth), dict[str, list[str]]()
    candidates = torch.stack(others) if others else truth[:0]
    recovered = {LOOKING: count_recovered(looked.images, truth, candidates)}
    looking = scores.clone()
    for refinement in _refinements(pipeline):
        try:
            fitted = refinement
            if refinement.needs_auxiliary:
                fitted = place().fit(refinement, _knowledge(pipeline, others), stream)
            found = place().refine_many(fitted, [observation], [looked], [stream])[0]
        except AttackError as error:
            missing.setdefault(str(error), []).append(repr(refinement))
            continue
        if found.failure:
            missing.setdefault(found.failure, []).append(repr(refinement))
            continue
        recovered[repr(refinement)] = count_recovered(found.images, truth, candidates)
        mine = psnr(found.images, truth)
        for at in (mine > scores).nonzero().flatten().tolist():
            best[at], by[at], scores[at] = found.images[at], repr(refinement), mine[at]
    shown = []
    for at, (name, image) in enumerate(attacked):
        tiles = [Tile("as it is", name, uri(image)), Tile("copy", name, uri(protected[at]), float(looking[at]))]
        guess = [Tile(by[at], name, uri(best[at]), float(scores[at]))] if len(recovered) > 1 else []
        shown.append(Strip(name, (*tiles, *guess)))
    return TriedAttacks(tuple(shown), recovered, tuple(f"{', '.join(of)}: {why}" for why, of in missing.items()))


def _refinements(pipeline: Pipeline) -> Iterator[Refinement]:
    """Attacks on images that know one of the defences, with their defaults."""
    for name in dict.fromkeys(name for defense in pipeline.defenses for name in defense.adaptive_attacks):
        made: Attack[object, object] | None = ATTACKS[name]() if name in ATTACKS else None
        if isinstance(made, Refinement):
            yield made


def _knowledge(pipeline: Pipeline, others: list[Tensor]) -> Knowledge:
    """Other pictures of the folder, all of one class, as there are no labels."""
    if not others:
        raise AttackError("there are no other pictures to learn from")
    images = torch.stack(others)
    channels = images.shape[1]
    targets = torch.nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 2).float()

    def train(_: Batch, seed: int) -> torch.nn.Module:
        shape = (channels, images.shape[2], images.shape[3])
        return build_model("convnet", num_classes=2, input_shape=shape, width=8, seed=seed).eval()

    return Knowledge(Batch(images, targets), pipeline, (0.5,) * channels, (0.5,) * channels, train)


def _squares(root: Path, names: list[str], side: int, most: int = SHOWN + MOST_LEARNED) -> Iterator[tuple[str, Tensor]]:
    for name in names[:most]:
        try:
            yield name, read(root / name, side).image
        except DataError:  # it has changed since its copy was made
            continue


def uri(image: Tensor) -> str:
    """(C, H, W) in [0, 1] as a PNG in a data URI."""
    file = io.BytesIO()
    drawn(image).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


BODY = """
<p class="kicker">fedveil protect</p>
<h1>{{ defense }}</h1>
<p class="facts"><b>Do not publish this page: it shows originals.</b> Do not publish manifest.json either: it has
the SHA-256 of each original.</p>
{% if warning %}<p class="banner alarm"><b>{{ warning }}</b></p>{% endif %}
<section class="protected" id="delivered"><h2>Delivered copies</h2>
<p class="facts">The copies are those in the folder, at their own sizes. Pictures of more than {{ largest }} pixels are reduced
for this page, by averaging.
{% if seen.finding and not warning %}{{ seen.finding }}.{% endif %}
{{ answers.finding }}</p>
{% if windows %}<p class="facts">{{ window_rule }}</p>
<ul>{% for one in windows %}<li>{{ one }}</li>{% endfor %}</ul>{% endif %}
<div class="delivered">{{ tiles(delivered) }}</div></section>
<section class="protected" id="attacks"><h2>What attacks recover</h2>
<p class="banner alarm"><b>{{ made.first }}</b>{% if not made.ran and made.summary %} {{ made.summary }}{% endif %}</p>
{% if made.missing %}<p class="facts">Attacks that did not run:</p>
<ul>{% for why in made.missing %}<li>{{ why }}</li>{% endfor %}</ul>{% endif %}
{% if made.scaled %}<p class="facts">These copies are not the delivered ones. The pictures were scaled to {{ made.scaled }} x
{{ made.scaled }} pixels before they were protected, because attacks that learn want one size.
{% if window_rule %}Their bounds follow that size: {{ scaled_windows | join('; ') }}.
{% else %}The same window covers more of a scaled picture, so that a delivered copy shows more than a scaled one.
{% if scaled_windows %}Here: {{ scaled_windows | join('; ') }}.{% endif %}{% endif %}</p>{% endif %}
<p class="facts">{% if made.ran %}Each row: a picture as it is, its copy, and the best guess of the attacks from the copy alone.
{{ made.summary }} {{ rule }} The attacks know the defence and {{ others }} other pictures of the folder, not the draws. The best
guess of each picture was chosen by the truth: no server can choose so.
{% else %}Each row: a picture as it is, and its copy.
{% endif %}</p>
{{ tiles(made.shown) }}</section>
"""
