"""What ``fedveil protect`` does: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import typer

from clients.secrets.secret_file import SecretError, default_folder, kept_secret
from defenses.base import InputDefense
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.console.command_line import errors, fail, self_contained
from simulations.console.progress import Display
from simulations.console.terminal import Terminal
from simulations.protect.copies import Order, copies
from simulations.protect.manifest import Manifest
from simulations.protect.pictures import left_out, output_names
from simulations.protect.sources import Pictures, pictures_of
from simulations.settings.errors import ConfigError, naming
from simulations.settings.fields import IMAGE_SIDE

console = Terminal(highlight=False)
MOST_REASONS = 3
"""Printed reasons why a defence does little to a picture of its size; the manifest has them all."""
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
) -> None:
    """What ``fedveil protect`` does; its options, as they were written."""
    try:
        pipeline = _pipeline(defense)
        if not IMAGE_SIDE["check"](image_size):
            raise ConfigError(f"--image-size is {image_size}; allowed: {IMAGE_SIDE['allowed']}")
        pictures = pictures_of(source, out, data_dir)
        key = kept_secret(secret or default_folder() / "protect", "name another file by --secret").hex()
        manifest = Manifest(Order(pictures.root, out.resolve(), str(pipeline), key, image_size, pictures.text))
        with manifest.claim(resume=resume):
            names = _begin(manifest, pictures, resume=resume)
            _copy_all(manifest, names, workers or os.cpu_count() or 1)
            try:
                attacked = _finish(manifest, names, preview=preview)
            finally:
                pictures.remove()
            _print_left_out(pictures)
    except KeyboardInterrupt:
        errors.say("\nstopped; go on with the same command and --resume")
        raise typer.Exit(130) from None
    except (ConfigError, SecretError) as error:
        fail(str(error))
    if manifest.failed or not attacked:
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


def _copy_all(manifest: Manifest, names: Mapping[str, str], workers: int) -> None:
    """Protects what the journal does not have yet, and shows how far it is."""
    todo = [(name, copy) for name, copy in names.items() if name not in manifest.done]
    with Display(console) as display:
        for done, one in enumerate(copies(manifest.order, todo, workers), 1 + len(names) - len(todo)):
            manifest.add(one)
            display.show("protecting", done, len(names))


def _finish(manifest: Manifest, names: Collection[str], *, preview: bool) -> bool:
    """Writes the manifest and the preview, and prints the results; whether the preview, if any, shows an attack."""
    attacked = True
    path, failed = manifest.finish(names), manifest.failed
    done = f"{len(names) - len(failed)} of {len(names)} pictures protected by {manifest.order.pipeline}: {path}"
    console.say(done)
    if preview:
        from simulations.protect.preview import write_preview

        made = write_preview(manifest)
        page = made.page or "none, as there is no copy to show"
        console.say(f"preview: {page}")
        attacked = made.page is None or bool(made.ran)
        if made.page:
            (console if made.ran else errors).say(made.summary)
        for why in made.missing:
            errors.say(f"did not run: {why}")
    for why, count in Counter(why for name in names for why in manifest.done[name].idle).most_common(MOST_REASONS):
        errors.say(f"{count} of them: {why}")
    if failed:
        errors.print(f"[red]{len(failed)} could not be protected:[/red]")
    for one in failed:
        errors.say(f"  {one.source}: {one.error}")
    return attacked


def _print_left_out(pictures: Pictures) -> None:
    """How many files of a person's own folder were no pictures."""
    if pictures.data is None and (others := left_out(pictures.root, set(pictures.names))):
        listed = ", ".join(f"{count} {ending or 'without ending'}" for ending, count in sorted(others.items()))
        errors.say(f"files left alone, as Pillow reads no pictures of their kind: {listed}")


def _pipeline(text: str) -> Pipeline:
    """A pipeline that protects pictures one by one, from a text that may name files."""
    text = self_contained(text, "--defense")
    with naming("--defense"):
        pipeline = parse(text)
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
    return pipeline
