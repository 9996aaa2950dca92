"""The command ``fedveil protect``: its options; its implementation is imported only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.console.results import AsJson, Quiet


def protect(
    source: Annotated[str, typer.Argument(metavar="IN", help="Folder of pictures, or the name of a data set.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the protected copies.")],
    defense: Annotated[str, typer.Option(metavar="PIPELINE", help='Defences of images, such as "VisualMixer()".')],
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting; `fedveil list protect` shows all."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the killed work in OUT.")] = False,
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that the draws start from; a new one is made where there is none.",
            show_default="~/.fedveil/secrets/protect",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a protected copy of pictures; the originals are never touched.

    A picture, whatever its name, gets the same copy whenever it is protected with the same defence and the same secret, which
    stays on this machine: with it a shuffle can be undone. Copies are lossless, upright and without metadata. manifest.json
    records the defence and, for each picture, what was left out and how much its copy differs.

    The command prints the PSNR of the copies to the originals. PSNR is no measure of privacy: `fedveil run` measures what attacks
    recover.

    Windows of VisualMixer are in pixels, 2 to 15 by default, whatever the size of the pictures.

    Publish the copies alone: manifest.json has the SHA-256 of each original.

    --json prints "directory", "manifest", "defense", how many pictures were "protected", which were "unreadable", how many files of
    each ending were "skipped", and the mean "psnr" of the copies in dB, at most 100 for each.

    Exit codes: 0 when every picture was processed, 2 for what cannot be done, 3 when some pictures could not be read (they are
    listed), 130 when it was stopped.
    """
    from simulations.protect.working import work

    work(source, out, defense, setting or [], resume=resume, secret=secret, quiet=quiet, as_json=as_json)
