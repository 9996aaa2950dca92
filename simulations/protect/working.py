"""The work of ``fedveil protect``: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clients.secrets.secret_file import SecretError, default_folder, kept_secret
from defenses.base import InputDefense
from defenses.pipeline import Pipeline
from defenses.registry import DEFENSES
from defenses.spec import SpecError, parse, stages
from simulations.console.command_line import errors, fail, self_contained
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from simulations.protect.copies import Order, copies
from simulations.protect.identified import Identified, compare
from simulations.protect.larger_windows import advice
from simulations.protect.manifest import UNTESTED, Manifest, require_target
from simulations.protect.pictures import left_out, output_names
from simulations.protect.sources import Pictures, pictures_of
from simulations.report.text import count
from simulations.run_folder.folder_lock import LOCK, remove_lock
from simulations.settings.errors import ConfigError, naming, require_known
from simulations.settings.fields import IMAGE_SIDE

if TYPE_CHECKING:
    from simulations.protect.preview import Preview

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
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil protect`` with its options as they were written."""
    shown = terminal_for(console, quiet=quiet or as_json)
    try:
        pipeline = _pipeline(defense)
        if not IMAGE_SIDE["check"](image_size):
            raise ConfigError(f"--image-size is {image_size}; allowed: {IMAGE_SIDE['allowed']}")
        pictures = pictures_of(source, out, data_dir)
        if preview:
            _require_enough(pictures)
        if not (
            out.resolve() / LOCK
        ).exists():  # else another command may be at work there, which taking the lock will show
            # Before a secret is made, so that a refused command leaves nothing behind.
            require_target(out.resolve(), resume=resume)
            pictures.check(resume=resume)
        key = _secret(shown, secret, resume=resume)
        manifest = Manifest(
            Order(pictures.root, out.resolve(), str(pipeline), key, image_size, pictures.name, pictures.place)
        )
        with manifest.claim(resume=resume):
            names = _begin(manifest, pictures, resume=resume)
            _copy_all(shown, manifest, names, workers or os.cpu_count() or 1)
            try:
                seen, warning = _look(shown, manifest)
                path = manifest.finish(names, seen)
                made = _preview(manifest, seen, warning) if preview else None
            finally:
                pictures.remove()
            left = left_out(pictures.root, set(pictures.names)) if pictures.data is None else {}
            _conclude(shown, manifest, names, seen, made, left)
            _print_seen(shown, seen, warning)
            _print_files(shown, path, made)
            if as_json:
                _print_json(manifest, names, path, made, left, seen, warning)
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


def _print_files(console: Terminal, path: Path, made: Preview | None) -> None:
    console.say(f"manifest: {path}")
    if made:
        console.say(f"preview: {made.page or 'none, as there is no copy to show'}")


def _print_seen(console: Terminal, seen: Identified, warning: str) -> None:
    if warning:
        errors.say(f"warning: {warning}")
    elif seen.finding:
        console.say(seen.finding)


def _preview(manifest: Manifest, seen: Identified, warning: str) -> Preview:
    from simulations.protect.preview import write_preview

    return write_preview(manifest, seen, warning)


def _conclude(
    console: Terminal,
    manifest: Manifest,
    names: Collection[str],
    seen: Identified,
    made: Preview | None,
    left: Mapping[str, int],
) -> None:
    """Prints what was processed, what copies still show, what was not processed, and what attacks of a preview recovered."""
    failed = manifest.failed
    counted = [f"{len(names) - len(failed)} of {len(names)} pictures processed by {manifest.order.pipeline}"]
    counted += [f"{len(failed)} unreadable"] if failed else []
    counted += [f"{count(sum(left.values()), 'file')} skipped"] if left else []
    console.say("; ".join([", ".join(counted), *([seen.headline] if seen.compared else [])]))
    for why, times in Counter(why for name in names for why in manifest.done[name].idle).most_common(MOST_REASONS):
        errors.say(f"{times} of them: {why}")
    if failed:
        errors.print(f"[red]{len(failed)} could not be protected:[/red]")
    for one in failed:
        errors.say(f"  {one.source}: {one.error}")
    if left:
        listed = ", ".join(f"{times} {ending or 'without ending'}" for ending, times in sorted(left.items()))
        errors.say(f"files left alone, as Pillow reads no pictures of their kind: {listed}")
    _print_attacked(console, made)


def _print_attacked(console: Terminal, made: Preview | None) -> None:
    """Which attacks ran and what they recovered, or that none ran."""
    if made is None:
        console.say(UNTESTED)
        return
    if made.ran:
        rows = ([name, f"{recovered} of {len(made.shown)}"] for name, recovered in made.recovered.items())
        at = f" of copies scaled to {made.scaled} x {made.scaled}" if made.scaled else ""
        console.print(table(("attack", f"recovered{at}"), (), rows))
    if made.page:
        (console if made.ran else errors).say(made.first if made.ran else f"{made.first} {made.summary}".strip())
    for why in made.missing:
        errors.say(f"did not run: {why}")


def _print_json(
    manifest: Manifest,
    names: Collection[str],
    path: Path,
    made: Preview | None,
    left: Mapping[str, int],
    seen: Identified,
    warning: str,
) -> None:
    """What was done, as `fedveil protect --help` describes it."""
    failed = [{"source": one.source, "error": one.error} for one in manifest.failed]
    about: dict[str, Any] = {
        "directory": str(manifest.order.out),
        "manifest": str(path),
        "defense": manifest.order.pipeline,
    }
    about |= {"identified": len(seen.names), "of": len(seen.compared), "warning": warning}
    about |= {"protected": len(names) - len(failed), "unreadable": failed, "skipped": left, "preview": None}
    if made:
        page = str(made.page) if made.page else None
        about["preview"] = {"page": page, "attacks": made.recovered, "of": len(made.shown), "did_not_run": made.missing}
    print_json(about)


def _pipeline(text: str) -> Pipeline:
    """A pipeline that protects pictures one by one, from a text that may name files."""
    with naming("--defense"):
        _require_names(text)
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


def _require_names(text: str) -> None:
    """Raise ``ConfigError`` for an unknown name, with those of the defences that protect pictures one by one."""
    try:
        named = stages(text)
    except SpecError:
        return  # ``parse`` refuses it
    usable = [
        name
        for name, kind in DEFENSES.items()
        if isinstance(kind, type) and issubclass(kind, InputDefense) and not kind.mixes_examples
    ]
    for name, _ in named:
        if name not in DEFENSES:
            require_known("defence of images", name, usable)
