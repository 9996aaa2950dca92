"""The work of ``fedveil protect``: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clients.secrets.secret_file import SecretError, default_folder, kept_secret
from defenses.base import InputDefense
from defenses.images.visual_mixer_windows import PAPER_SIDE
from defenses.registry import DEFENSES
from defenses.spec import SpecError, stages
from simulations.console.command_line import errors, fail
from simulations.console.progress import Display
from simulations.console.results import terminal_for
from simulations.console.terminal import Terminal
from simulations.protect.copies import Order, copies
from simulations.protect.identified import Identified, compare
from simulations.protect.larger_windows import advice
from simulations.protect.manifest import Manifest, require_target
from simulations.protect.pictures import left_out, output_names
from simulations.protect.printed import Finished
from simulations.protect.recognised import AUTO, NONE, Judge, Recognised, judge_for, recognise, require_network
from simulations.protect.sources import Pictures, pictures_of
from simulations.protect.window_rule import for_size, self_contained
from simulations.run_folder.folder_lock import LOCK, remove_lock
from simulations.settings.errors import ConfigError, naming, require_known
from simulations.settings.fields import IMAGE_SIDE

if TYPE_CHECKING:
    from simulations.protect.preview import Preview

console = Terminal(highlight=False)
EXIT_SOME_FAILED = 3
"""Some pictures could not be protected, or no attack of a preview ran; the rest was done."""


def work(
    source: str,
    out: Path,
    defense: str,
    *,
    image_size: int,
    resume: bool,
    preview: bool,
    workers: int,
    data_dir: str,
    secret: Path | None,
    recogniser: str = AUTO,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil protect`` with its options as they were written."""
    shown = terminal_for(console, quiet=quiet or as_json)
    try:
        pipeline = _pipeline(defense)
        if not IMAGE_SIDE["check"](image_size):
            raise ConfigError(f"--image-size is {image_size}; allowed: {IMAGE_SIDE['allowed']}")
        require_network(recogniser)
        pictures = pictures_of(source, out, data_dir)
        if preview:
            _require_enough(pictures)
        if not (
            out.resolve() / LOCK
        ).exists():  # else another command may be at work there, which taking the lock will show
            # Before a secret is made, so that a refused command leaves nothing behind.
            require_target(out.resolve(), resume=resume)
            pictures.check(resume=resume)
        judge = judge_for(recogniser if preview or recogniser != AUTO else NONE)
        key = _secret(shown, secret, resume=resume)
        manifest = Manifest(
            Order(pictures.root, out.resolve(), pipeline, key, image_size, pictures.name, pictures.place)
        )
        with manifest.claim(resume=resume):
            names = _begin(manifest, pictures, resume=resume)
            _copy_all(shown, manifest, names, workers or os.cpu_count() or 1)
            try:
                seen, warning = _look(shown, manifest)
                answers = _recognise(shown, manifest, judge)
                path = manifest.finish(names, seen, answers)
                made = _preview(manifest, seen, answers, warning) if preview else None
            finally:
                pictures.remove()
            left = left_out(pictures.root, set(pictures.names)) if pictures.data is None else {}
            finished = Finished(manifest, path, names, seen, warning, answers, made, left)
            finished.print(shown)
            if as_json:
                finished.print_json()
            remove_lock(manifest.order.out)
    except KeyboardInterrupt:
        errors.say("\nstopped; go on with the same command and --resume")
        raise typer.Exit(130) from None
    except (ConfigError, SecretError) as error:
        fail(str(error))
    if manifest.failed or (made and made.page and not made.ran):
        raise typer.Exit(EXIT_SOME_FAILED)


def _begin(manifest: Manifest, pictures: Pictures, *, resume: bool) -> dict[str, str]:
    """Opens the journal of a target; returns source -> copy of each picture."""
    names = output_names(pictures.names)
    pictures.check(resume=resume)
    if not resume:
        manifest.begin()
    pictures.write()
    if resume:
        manifest.resume()
    return names


def _copy_all(console: Terminal, manifest: Manifest, names: Mapping[str, str], workers: int) -> None:
    """Protects what the journal does not have yet, and shows how far it is."""
    todo = [(name, copy) for name, copy in names.items() if name not in manifest.done]
    with Display(console) as display:
        for done, one in enumerate(copies(manifest.order, todo, workers), 1 + len(names) - len(todo)):
            manifest.add(one)
            display.show("protecting", done, len(names))


def _secret(console: Terminal, named: Path | None, *, resume: bool) -> str:
    """The secret as hexadecimal digits; a line says when a new one was written.

    Raises:
        ConfigError: Where work is to go on, and the secret that it was begun with is gone.
    """
    path = named or default_folder() / "protect"
    new = not os.path.lexists(path)
    if new and resume:
        raise ConfigError(
            f"--secret: {path} does not exist; name the file of the secret that the copies were begun with"
        )
    key = kept_secret(path, "name another file by --secret").hex()
    if new:
        (errors if named else console).say(
            f"a new secret was written to {path}; copies made with another secret differ"
        )
    return key


def _require_enough(pictures: Pictures) -> None:
    from simulations.protect.preview import require_enough

    require_enough(pictures)


def _look(console: Terminal, manifest: Manifest) -> tuple[Identified, str]:
    """What delivered copies show from a distance, and the warning where most of them still show their pictures, else ""."""
    seen = compare(manifest.order, list(manifest.done.values()))
    if not seen.most:
        return seen, ""
    with Display(console) as display:
        return seen, f"{seen.finding}; {advice(manifest.order, seen, partial(display.show, 'trying larger windows'))}"


def _recognise(console: Terminal, manifest: Manifest, judge: Judge) -> Recognised:
    with Display(console) as display:
        shown = partial(display.show, "recognising")
        return recognise(manifest.order, list(manifest.done.values()), judge, shown)


def _preview(manifest: Manifest, seen: Identified, answers: Recognised, warning: str) -> Preview:
    from simulations.protect.preview import write_preview

    return write_preview(manifest, seen, answers, warning)


def _pipeline(text: str) -> str:
    """The text of a pipeline that protects pictures one by one, from a text that may name files."""
    with naming("--defense"):
        _require_names(text)
        text = self_contained(text)
        pipeline = for_size(text, PAPER_SIDE, PAPER_SIDE)
    if not pipeline.defenses:
        raise ConfigError(
            "--defense is empty; name a defence of images, such as VisualMixer(); `fedveil list defenses` shows all"
        )
    if other := next((one for one in pipeline.defenses if not isinstance(one, InputDefense)), None):
        raise ConfigError(f"--defense: {other} does not protect images, which alone are copied here")
    if mixing := next((one for one in pipeline.defenses if one.mixes_examples), None):
        raise ConfigError(
            f"--defense: {mixing} makes one image and one label of several, and a folder has no place for mixed labels; use "
            "`fedveil run`, in which clients mix them"
        )
    return text


def _require_names(text: str) -> None:
    """Raise ``ConfigError`` for an unknown name, with those of the defences that protect pictures one by one."""
    try:
        named = stages(text)
    except SpecError:
        return  # ``self_contained`` refuses it
    usable = [
        name
        for name, kind in DEFENSES.items()
        if isinstance(kind, type) and issubclass(kind, InputDefense) and not kind.mixes_examples
    ]
    for name, _ in named:
        if name not in DEFENSES:
            require_known("defence of images", name, usable)
