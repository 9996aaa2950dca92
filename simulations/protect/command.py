"""The command ``fedveil protect``: a protected copy of a folder of pictures, or of a named data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from clients.data.datasets import dataset_names, load_dataset
from clients.secret_file import SecretError, default_folder, kept_secret
from defenses.base import InputDefense
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.errors import ConfigError
from simulations.protect.copies import Order, copies, write_dataset
from simulations.protect.manifest import Manifest
from simulations.protect.pictures import find, output_names
from simulations.words import errors, fail, self_contained

console = Console(highlight=False)
EXIT_SOME_FAILED = 3
"""Some pictures could not be protected; the others were."""
SOURCE = ".source"
"""Folder beside the copies of a data set that holds its pictures as they are, while they are being protected."""


def protect(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder of pictures, or the name of a data set.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the protected copies.")],
    defense: Annotated[str, typer.Option(metavar="PIPELINE", help='Defences of images, such as "VisualMixer()".')],
    image_size: Annotated[
        int, typer.Option(min=0, max=4096, help="Scale the central squares to this side; 0: keep sizes.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the killed work in OUT.")] = False,
    preview: Annotated[
        bool,
        typer.Option("--preview", help="Also write a page with what the strongest attack on such copies gets back."),
    ] = False,
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0: one for each processor.")] = 0,
    data_dir: Annotated[str, typer.Option(help="Directory of the files of a named data set.")] = "",
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File that the draws start from, made at first use.", show_default="~/.fedveil/secrets/protect"
        ),
    ] = None,
) -> None:
    """Writes a protected copy of pictures; the originals are never touched.

    A picture gets the same copy whenever it is protected with the same defence and the same secret, which stays on this machine:
    whoever has it can undo a shuffle. Copies are lossless, upright and without metadata. manifest.json says what was done.

    Exit codes: 0 when every picture was protected, 2 for what cannot be done, 3 when some pictures could not be read (they are
    listed), 130 when it was stopped.
    """
    try:
        pipeline = _pipeline(defense)
        root = _source(source, out)
        if isinstance(root, str):
            root = _dataset(root, out, data_dir, resume=resume)
        names = output_names(find(root))
        key = kept_secret(secret or default_folder() / "protect").hex()
        manifest = Manifest(Order(root, out.resolve(), str(pipeline), key, image_size))
        if resume:
            manifest.resume()
        else:
            manifest.begin()
    except (ConfigError, SecretError) as error:
        fail(str(error))
    todo = [(name, copy) for name, copy in names.items() if name not in manifest.done]
    columns = (TextColumn("protecting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            row = bar.add_task("", total=len(names), completed=len(names) - len(todo))
            for one in copies(manifest.order, todo, workers or os.cpu_count() or 1):
                manifest.add(one)
                bar.advance(row)
    except KeyboardInterrupt:
        errors.print("\nstopped; go on with the same command and --resume", markup=False)
        raise typer.Exit(130) from None
    path = manifest.finish(list(names))
    failed = manifest.failed
    console.print(
        f"{len(names) - len(failed)} of {len(names)} pictures protected by {pipeline}: {path}",
        soft_wrap=True,
        markup=False,
    )
    if preview:
        from simulations.protect.preview import write_preview

        console.print(f"preview: {write_preview(manifest)}", soft_wrap=True, markup=False)
    if failed:
        errors.print(f"[red]{len(failed)} could not be protected:[/red]")
        for one in failed:
            errors.print(f"  {one.source}: {one.error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_SOME_FAILED)


def _pipeline(text: str) -> Pipeline:
    """A pipeline that protects pictures one by one, from a text that may name files.

    Raises:
        ConfigError: When it cannot be read, or does something else.
    """
    pipeline = parse(self_contained(text, "--defense"))
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


def _source(source: str, out: Path) -> Path | str:
    """The folder of pictures, or the name of a data set.

    Raises:
        ConfigError: When it is neither, or the copies would come to lie among the originals.
    """
    folder = Path(source)
    if folder.is_dir():
        root, target = folder.resolve(), out.resolve()
        if target == root or target.is_relative_to(root) or root.is_relative_to(target):
            raise ConfigError(f"OUT: {out} and IN, {source}, lie in each other; originals and copies must not mix")
        return root
    if source.partition(":")[0] in dataset_names():
        return source
    what = "is a file" if folder.exists() else "is no folder"
    raise ConfigError(f"IN: {source!r} {what} and no data set; known data sets: {', '.join(dataset_names())}")


def _dataset(name: str, out: Path, data_dir: str, *, resume: bool) -> Path:
    """A folder with the pictures of a data set, beside the copies."""
    folder = out.resolve().with_name(out.resolve().name + SOURCE)
    if folder.is_dir() and resume:
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} is in the way of the data set's own pictures; remove it, or go on with --resume")
    try:
        data = load_dataset(name, data_dir=data_dir)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    partial = folder.with_name(folder.name + ".part")
    write_dataset(data, partial)
    partial.replace(folder)
    return folder
