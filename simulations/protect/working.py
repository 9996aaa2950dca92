"""The work of ``fedveil protect``: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import typer

from clients.secrets.secret_file import SecretError, default_folder, kept_secret
from defenses.base import InputDefense
from defenses.pipeline import Pipeline
from defenses.registry import DEFENSES
from defenses.spec import SpecError, parse, read_files, stages
from simulations.console.command_line import errors, fail
from simulations.console.progress import Display
from simulations.console.results import terminal_for
from simulations.console.terminal import Terminal
from simulations.protect.copies import Order, copies
from simulations.protect.manifest import Manifest, require_usable
from simulations.protect.pictures import left_out, output_names
from simulations.protect.printed import Finished
from simulations.protect.sources import Pictures, pictures_of
from simulations.protect.windows import require_windows
from simulations.run_folder.folder_lock import remove_lock
from simulations.settings.errors import ConfigError, naming, require_known
from simulations.settings.fields import IMAGE_SIDE

console = Terminal(highlight=False)
EXIT_SOME_FAILED = 3
"""Some pictures could not be protected; the rest was done."""


def work(
    source: str,
    out: Path,
    defense: str,
    *,
    image_size: int,
    resume: bool,
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
        names = output_names(pictures.names)
        # Before a secret is made, so that a refused command leaves nothing behind.
        require_usable(out.resolve(), resume=resume)
        pictures.check(resume=resume)
        require_windows(pipeline, pictures, image_size)
        key = _secret(shown, secret, resume=resume)
        manifest = Manifest(
            Order(pictures.root, out.resolve(), str(pipeline), key, image_size, pictures.name, pictures.place)
        )
        with manifest.claim(resume=resume):
            _begin(manifest, pictures, resume=resume)
            _copy_all(shown, manifest, names, workers or os.cpu_count() or 1)
            try:
                path = manifest.finish(names)
            finally:
                pictures.remove()
            left = left_out(pictures.root, set(pictures.names)) if pictures.data is None else {}
            finished = Finished(manifest, path, names, left)
            finished.print(shown)
            if as_json:
                finished.print_json()
            remove_lock(manifest.order.out)
    except KeyboardInterrupt:
        errors.say("\nstopped; go on with the same command and --resume")
        raise typer.Exit(130) from None
    except (ConfigError, SecretError) as error:
        fail(str(error))
    if manifest.failed:
        raise typer.Exit(EXIT_SOME_FAILED)


def _begin(manifest: Manifest, pictures: Pictures, *, resume: bool) -> None:
    """Open the journal of a target."""
    pictures.check(resume=resume)
    if not resume:
        manifest.begin()
    pictures.write()
    if resume:
        manifest.resume()


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


def _pipeline(text: str) -> Pipeline:
    """A pipeline that protects pictures one by one, from a text that may name files."""
    with naming("--defense"):
        _require_names(text)
        pipeline = parse(read_files(text))
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
        return  # ``read_files`` refuses it
    usable = [
        name
        for name, kind in DEFENSES.items()
        if isinstance(kind, type) and issubclass(kind, InputDefense) and not kind.mixes_examples
    ]
    for name, _ in named:
        if name not in DEFENSES:
            require_known("defence of images", name, usable)
