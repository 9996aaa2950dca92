"""The command ``fedveil attack``: its options; what it does is imported when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from simulations.console.command_line import errors, fail, self_contained
from simulations.console.results import AsJson, Quiet, terminal_for
from simulations.console.terminal import Terminal
from simulations.settings.defaults import DEFAULT_ATTACKS
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)


def attack(
    update: Annotated[
        Path,
        typer.Argument(
            metavar="UPDATE",
            help="Safetensors of name -> (local - global), of every parameter; or the folder of a recording.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="As `fedveil list models` shows, or your own: file.py:Class, package.module:factory.")
    ],
    num_classes: Annotated[int, typer.Option(help="Number of logits.")],
    input_shape: Annotated[str, typer.Option(metavar="C,H,W", help="One image, such as 1,28,28.")],
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="Learning rate of the client's SGD.", show_default="what a recording says"),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Safetensors of the global weights; without it, the initial ones of --seed."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="UPDATE holds the local weights instead.")] = False,
    width: Annotated[int, typer.Option(help="Width of a model that has one; 0: its default.")] = 0,
    norm: Annotated[str, typer.Option(help="Normalisation layers of the model: group or batch.")] = "group",
    mean: Annotated[str, typer.Option(help="Normalisation of images in [0, 1], per channel: 0.49,0.48,0.45.")] = "",
    std: Annotated[str, typer.Option(help="Standard deviation of that normalisation, likewise.")] = "",
    num_examples: Annotated[
        int | None,
        typer.Option(help="Examples that the update was computed on.", show_default="1, or what a recording says"),
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="Optimizer steps of the client.", show_default="1, or counted in a recording")
    ] = None,
    local_epochs: Annotated[int, typer.Option(help="Local epochs of the clients of a recording; 0: as it says.")] = 0,
    rounds: Annotated[
        str, typer.Option(metavar="1,3", help="Rounds of a recording to attack.", show_default="all")
    ] = "",
    originals: Annotated[
        Path | None, typer.Option(metavar="DIR", help="True images of a recording, to score the guesses.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples of a local step; 0 for all.")] = 0,
    weight_decay: Annotated[float, typer.Option(help="L2 coefficient of the client.")] = 0.0,
    momentum: Annotated[
        float, typer.Option(help="Momentum of the client's SGD, which starts each round without any.")
    ] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="The client's SGD looks ahead by its momentum.")] = False,
    labels: Annotated[str, typer.Option(help="Classes of the examples, if known: 3,5.")] = "",
    eval_mode: Annotated[bool, typer.Option("--eval-mode", help="The client's model was in eval mode.")] = False,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Attacks, separated by `;`, or the option again; `fedveil list attacks` shows all.",
            show_default=DEFAULT_ATTACKS,
        ),
    ] = None,
    auxiliary: Annotated[str, typer.Option(metavar="DATASET", help="Data that attacks may learn from.")] = "",
    data_dir: Annotated[str, typer.Option(metavar="DIR", help="Directory of the files of --auxiliary.")] = "",
    defense: Annotated[str, typer.Option(metavar="PIPELINE", help="The client's defence, which attacks know.")] = "",
    truth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Safetensors with `images` in [0, 1] and `labels`, to score the guesses."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks and of the initial weights.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results.", show_default="runs/attack-DATE-TIME")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack one update, or a whole recording, of any Flower app, and write the guesses.

    The client must have trained by SGD from the weights given by --weights, or in the recording.

    --json prints "directory", "page", "scored" (whether originals were given), "claims" (what the app says about its differential
    privacy, unchecked) and "attacks". Each attack has "attack", "round", "recovered" of "attacked" images, "share" in [0, 1] with
    its interval "low" to "high", "psnr", "best_psnr", "labels", "status" and "failure".

    Exit codes: 0 when an attack gave a guess, 1 when all failed, 2 for what cannot be attacked, 130 when it was stopped.
    """
    from simulations.external_app.recorded.command import attack_recording, attack_update
    from simulations.external_app.recorded.replies import RecordingRequest
    from simulations.external_app.recorded.request import Request

    shown = terminal_for(console, quiet=quiet or as_json)
    folder = (out or Path("runs") / datetime.now().strftime("attack-%Y%m%d-%H%M%S")).resolve()
    given = {"--local-epochs": local_epochs, "--rounds": rounds, "--originals": originals}
    try:
        if not update.exists():
            raise ConfigError(f"UPDATE: there is no file or folder {update}")
        if learning_rate is not None and not 0 < learning_rate < float("inf"):
            raise ConfigError(f"--learning-rate is {learning_rate}; allowed: a positive number")
        request = Request(
            update=update, model=model, num_classes=num_classes, input_shape=input_shape, learning_rate=learning_rate or 0.0,
            weights=weights, local=local, width=width, norm=norm, mean=mean, std=std, num_examples=num_examples or 0,
            local_steps=local_steps or 0, batch_size=batch_size, weight_decay=weight_decay, momentum=momentum,
            nesterov=nesterov, labels=labels, eval_mode=eval_mode, attacks="; ".join(attack or [DEFAULT_ATTACKS]),
            auxiliary=auxiliary, data_dir=data_dir, defense=self_contained(defense, "--defense"), truth=truth, seed=seed,
        )  # fmt: skip
        if update.is_dir():
            wanted = RecordingRequest(request, local_epochs, rounds, originals)
            failed = attack_recording(shown, wanted, folder, as_json=as_json)
        else:
            if odd := next((option for option, value in given.items() if value), None):
                raise ConfigError(f"{odd} is for recordings, and {update} is no folder")
            if learning_rate is None:
                raise ConfigError("--learning-rate is needed: a single update does not contain it")
            single = replace(
                request,
                num_examples=1 if num_examples is None else num_examples,
                local_steps=1 if local_steps is None else local_steps,
            )
            failed = attack_update(shown, single, folder, as_json=as_json)
    except (ConfigError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        kept = "what the attacks before had found is kept in" if folder.is_dir() else "nothing was written to"
        errors.say(f"\nstopped; {kept} {folder}")
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)
