"""The command ``fedveil attack``: its options; its implementation is imported only when it runs."""

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

MOST_MISSING = 20_000
"""Characters of an error that ends with a command, which must not be cut."""

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
        str,
        typer.Option(
            help="Needed: as `fedveil list models` shows, or your own: file.py:Class, package.module:factory.",
            show_default=False,
        ),
    ] = "",
    num_classes: Annotated[int, typer.Option(help="Needed: number of logits.", show_default=False)] = 0,
    input_shape: Annotated[
        str, typer.Option(metavar="C,H,W", help="Needed: one image, such as 1,28,28.", show_default=False)
    ] = "",
    learning_rate: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Learning rate of the client's SGD. Attacks that compare directions of gradients need none.",
            show_default="what a recording says, or what the update shows",
        ),
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
    weight_decay: Annotated[
        float | None, typer.Option(help="L2 coefficient of the client.", show_default="0, or what a recording says")
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(
            help="Momentum of the client's SGD, which starts each round without any.",
            show_default="0, or what a recording says",
        ),
    ] = None,
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

    What is missing or wrong is named in one error, which ends with the complete command.

    Exit codes: 0 when an attack gave a guess, 1 when all failed, 2 for what cannot be attacked, 130 when it was stopped.
    """
    from simulations.external_app.recorded.arguments.missing import IncompleteError, require_complete
    from simulations.external_app.recorded.arguments.request import RecordingRequest, Request

    shown = terminal_for(console, quiet=quiet or as_json)
    folder = (out or Path("runs") / datetime.now().strftime("attack-%Y%m%d-%H%M%S")).resolve()
    unset = {name for name, value in {"momentum": momentum, "weight_decay": weight_decay}.items() if value is None}
    usual = 0 if update.is_dir() else 1  # 0 stands for what a recording says
    wrong = learning_rate is not None and not 0 < learning_rate < float("inf")
    try:
        request = Request(
            update=update, model=model, num_classes=num_classes, input_shape=input_shape,
            learning_rate=0.0 if wrong else learning_rate or 0.0,
            weights=weights, local=local, width=width, norm=norm, mean=mean, std=std,
            num_examples=usual if num_examples is None else num_examples,
            local_steps=usual if local_steps is None else local_steps,
            batch_size=batch_size, weight_decay=weight_decay or 0.0, momentum=momentum or 0.0,
            nesterov=nesterov, labels=labels, eval_mode=eval_mode, attacks="; ".join(attack or [DEFAULT_ATTACKS]),
            auxiliary=auxiliary, data_dir=data_dir, defense=defense, truth=truth, seed=seed,
        )  # fmt: skip
        problems = [f"--learning-rate is {learning_rate}; allowed: a positive number"] if wrong else []
        wanted = RecordingRequest(request, local_epochs, rounds, originals, tuple(sorted(unset)))
        wanted = require_complete(wanted, folder, problems, out_given=out is not None)
        defense = self_contained(defense, "--defense")
        wanted = replace(wanted, options=replace(wanted.options, defense=defense))
        from simulations.external_app.recorded.command import attack_recording, attack_update

        if update.is_dir():
            failed = attack_recording(shown, wanted, folder, as_json=as_json)
        else:
            failed = attack_update(shown, wanted.options, folder, as_json=as_json)
    except IncompleteError as error:
        fail(str(error), longest=MOST_MISSING)
    except (ConfigError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        kept = "what the attacks before had found is kept in" if folder.is_dir() else "nothing was written to"
        errors.say(f"\nstopped; {kept} {folder}")
        raise typer.Exit(130) from None
    if failed:
        raise typer.Exit(1)
