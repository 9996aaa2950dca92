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
    image_size: Annotated[int, typer.Option(help="Scale the central squares to this side; 0: keep sizes.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the killed work in OUT.")] = False,
    preview: Annotated[
        bool,
        typer.Option(
            "--preview",
            help="Also write a page of copies and of what attacks recover from them; needs 8 pictures, 22 for all attacks.",
        ),
    ] = False,
    workers: Annotated[int, typer.Option(min=0, max=1024, help="Processes; 0: one for each processor.")] = 0,
    data_dir: Annotated[str, typer.Option(metavar="DIR", help="Directory of the files of a named data set.")] = "",
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that the draws start from; a new one is made where there is none.",
            show_default="~/.fedveil/secrets/protect",
        ),
    ] = None,
    recogniser: Annotated[
        str, typer.Option(metavar="NETWORK", help="Pretrained network that judges copies: a name, a file, or none.")
    ] = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a protected copy of pictures; the originals are never touched.

    A picture, whatever its name, gets the same copy whenever it is protected with the same defence and the same secret, which
    stays on this machine: with it a shuffle can be undone. Copies are lossless, upright and without metadata. manifest.json
    says what was done and how many copies still show their picture.

    Up to 100 copies are downsampled to 32x32 and compared with the originals. If most are closest to their own, a warning says so:
    they still show their pictures. Of VisualMixer it names larger windows where these help.

    VisualMixer without bounds takes windows for each picture's size: 1/28 of the longer side or more, 8 of 224 pixels as in the
    example of its paper (Li et al., NDSS 2024). Bounds that you give are kept.

    Publish the copies alone: manifest.json has the SHA-256 of each original, and preview.html shows originals.

    --recogniser compares the answers of a pretrained network on copies and pictures: efficientnet-lite0 (extra "pretrained"), a
    file of its weights, or MODEL=FILE with ImageNet's 1,000 classes. A network that you name must load, else nothing is written.
    By default it is that network, with --preview, if installed.

    --preview needs at least 8 pictures of one kind, coloured or grey; 6 are shown. LearnedRestorer needs 22 of them, to learn.

    --json prints "directory", "manifest", "defense", how many pictures were "protected", which were "unreadable", how many files of
    each ending were "skipped". "identified" are the copies that show their pictures, "of" how many, with the "warning".
    "recognised" has the numbers of the network, or why it is "missing"; null if none was wanted. Of a "preview" it has the "page",
    "attacks" (how many pictures each recovered, "of" how many) and those that "did_not_run".

    Exit codes: 0 when every picture was processed, 2 for what cannot be done, 3 when some pictures could not be read (they are
    listed) or no attack of the preview ran, 130 when it was stopped.
    """
    from simulations.protect.working import work

    work(
        source, out, defense, image_size=image_size, resume=resume, preview=preview, workers=workers, data_dir=data_dir,
        secret=secret, recogniser=recogniser, quiet=quiet, as_json=as_json,
    )  # fmt: skip
