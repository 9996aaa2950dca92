"""The work of ``fedveil protect``: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from clients.data.files.decoding import full_scale, scale_text
from clients.secrets.draws import SecretError, default_folder, kept_secret
from clients.wire.schema import fields_of
from defenses.base import InputDefense
from defenses.pipeline import Pipeline
from defenses.spec import parse, read_files
from simulations.console.command_line import errors, fail, setting_of
from simulations.console.progress import Display
from simulations.console.results import print_json, terminal_for
from simulations.console.terminal import Terminal
from simulations.protect.copies import Order, copies
from simulations.protect.manifest import MANIFEST, Manifest, taken
from simulations.protect.pictures import left_out, output_names
from simulations.protect.settings import ProtectSettings
from simulations.protect.sources import pictures_of
from simulations.report.text import count
from simulations.settings.errors import ConfigError, naming, read_known

console = Terminal(highlight=False)
EXIT_SOME_FAILED = 3
"""Some pictures could not be protected; the rest was done."""
PRIVATE = (
    "Publish the copies alone: manifest.json has the SHA-256 of each original, by which a known original is found."
)
NO_PRIVACY = "PSNR is no measure of privacy: `fedveil run` measures what attacks recover"
MOST_REASONS = 3
"""Printed reasons why a defence does little to a picture of its size; the manifest has them all."""


def work(
    source: str,
    out: Path,
    defense: str,
    given: Sequence[str],
    *,
    resume: bool,
    secret: Path | None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil protect`` with its options as they were written."""
    shown = terminal_for(console, quiet=quiet or as_json)
    try:
        pipeline = _pipeline(defense)
        settings = read_known(
            ProtectSettings, dict(setting_of(text, fields_of(ProtectSettings)) for text in given), "protect"
        )
        pictures = pictures_of(source, out, settings.data_dir)
        names = output_names(pictures.names)
        target = out.resolve()
        with taken(target, resume=resume), TemporaryDirectory(prefix="fedveil-") as temporary:
            key = _secret(shown, secret, resume=resume)
            root = pictures.folder(temporary)
            scale = full_scale(root / name for name in names)
            if scale:
                shown.say(f"notice: {scale_text(scale)} in pictures beyond 8 bits")
            of = pictures.name, pictures.place, scale
            manifest = Manifest(Order(root, target, str(pipeline), key, settings.image_size, *of))
            manifest.begin(resume=resume)
            _copy_all(shown, manifest, names, settings.workers or os.cpu_count() or 1)
            found = manifest.finish(names)
        left = {} if pictures.data else left_out(root, names)
        _print(shown, manifest, found, left)
        if as_json:
            counts = {"protected": len(found["files"]), "unreadable": found["failed"], "skipped": left}
            about = {"directory": str(target), "manifest": str(target / MANIFEST), "defense": str(pipeline)}
            print_json({**about, **counts, "psnr": found["psnr"]})
    except KeyboardInterrupt:
        errors.say("\nstopped; go on with the same command and --resume")
        raise typer.Exit(130) from None
    except (ConfigError, SecretError) as error:
        fail(str(error))
    if found["failed"]:
        raise typer.Exit(EXIT_SOME_FAILED)


def _copy_all(console: Terminal, manifest: Manifest, names: Mapping[str, str], workers: int) -> None:
    todo = [(name, copy) for name, copy in names.items() if name not in manifest.done]
    with Display(console) as display:
        for done, one in enumerate(copies(manifest.order, todo, workers), 1 + len(names) - len(todo)):
            manifest.add(one)
            display.show("protecting", done, len(names))


def _secret(console: Terminal, named: Path | None, *, resume: bool) -> str:
    """The secret as hexadecimal digits; ``ConfigError`` where work is to go on, and the secret that it was begun with is gone."""
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
    with naming("--defense"):
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


def _print(console: Terminal, manifest: Manifest, found: Mapping[str, Any], left: Mapping[str, int]) -> None:
    done, failed = found["files"], found["failed"]
    counted = [f"{len(done)} of {len(done) + len(failed)} pictures processed by {found['defense']}"]
    counted += [f"{len(failed)} unreadable"] if failed else []
    counted += [f"{count(sum(left.values()), 'file')} skipped"] if left else []
    console.say(", ".join(counted))
    for line in manifest.windows:
        console.say(line)
    for why, times in Counter(why for one in done for why in one["idle"]).most_common(MOST_REASONS):
        errors.say(f"{times} of them: {why}")
    if failed:
        errors.print(f"[red]{len(failed)} could not be protected:[/red]")
    for one in failed:
        errors.say(f"  {one['source']}: {one['error']}")
    if left:
        listed = ", ".join(f"{times} {ending or 'without ending'}" for ending, times in sorted(left.items()))
        errors.say(f"files left alone, as Pillow reads no pictures of their kind: {listed}")
    if psnrs := [one["psnr"] for one in done]:
        scale = f"{min(psnrs):.1f} to {max(psnrs):.1f} dB, mean {found['psnr']:.1f} (100: unchanged)"
        console.say(f"PSNR of the copies to the originals: {scale}. {NO_PRIVACY}.")
    console.say(f"manifest: {manifest.order.out / MANIFEST}")
    console.say(PRIVATE)
